"""How well scores foretell what is read: ``benchmarks.tiers.prediction`` by the name of its folder."""

from benchmarks.tiers.prediction import main

if __name__ == "__main__":
    main()
