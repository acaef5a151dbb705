"""Stage times for the planner's tests."""

from hypothesis import strategies as st

from graphbraid.collective.plan.times import Duration, StageTimes


def stage_times(cpu, dma, model, uva=None, *, workers=1, cv=0.0, gpu=None):
    """Times in seconds."""

    def duration(seconds):
        return None if seconds is None else Duration(seconds=seconds, cv=cv)

    return StageTimes(
        workers=workers,
        cpu=duration(cpu),
        dma=duration(dma),
        model=duration(model),
        uva=duration(uva),
        gpu=duration(gpu),
    )


seconds = st.floats(1e-3, 1e-1)

any_times = st.builds(
    lambda cpu, dma, model, uva, workers: stage_times(cpu, dma, model, uva, workers=workers),
    seconds,
    seconds,
    seconds,
    st.none() | seconds,
    st.integers(1, 8),
)
two_routes = any_times.filter(lambda times: times.uva is not None)
