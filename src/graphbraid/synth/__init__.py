"""Program synthesis: a short program, or a model, becomes source code that trains without Python."""

from graphbraid.synth.emit.cuda import write_cuda
from graphbraid.synth.emit.mpi import write_mpi
from graphbraid.synth.emit.openmp import write_openmp
from graphbraid.synth.language.checking import parse_program, read_program, standard_program
from graphbraid.synth.language.syntax import Place, ProgramError
from graphbraid.synth.recipe import EarlyStop, OptimizerRecipe, Recipe
from graphbraid.synth.synthesis import Synthesis, from_model, from_program
from graphbraid.synth.training import Trained, train
from graphbraid.synth.weights import load_weights, save_weights

__all__ = [
    "EarlyStop",
    "OptimizerRecipe",
    "Place",
    "ProgramError",
    "Recipe",
    "Synthesis",
    "Trained",
    "from_model",
    "from_program",
    "load_weights",
    "parse_program",
    "read_program",
    "save_weights",
    "standard_program",
    "train",
    "write_cuda",
    "write_mpi",
    "write_openmp",
]
