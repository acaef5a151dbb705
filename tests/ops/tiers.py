"""Tables cut into tiers of any sizes, and the rows they stand for."""

import torch
from hypothesis import strategies as st
from torch import Tensor

from graphbraid.ops.gather import Tier, TierTable

DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.int8, torch.float64)


@st.composite
def tier_tables(draw: st.DrawFn, *, most_rows: int = 40) -> tuple[TierTable, Tensor, Tensor]:
    """A table of up to four tiers, its rows in order of ids, widened if they have scales, and some ids."""
    generator = torch.Generator().manual_seed(draw(st.integers(0, 999)))
    dtype, width = draw(st.sampled_from(DTYPES)), draw(st.integers(1, 20))
    sizes = draw(st.lists(st.integers(0, most_rows // 4), min_size=1, max_size=4))
    num_parts = [draw(st.integers(1, 3)) for _ in sizes]
    num_rows = sum(sizes)
    rows = (torch.randn(num_rows, width, generator=generator) * 30).to(dtype)
    scale = torch.rand(num_rows, generator=generator) if dtype == torch.int8 and draw(st.booleans()) else None
    tiers, begin = [], 0
    for size, parts in zip(sizes, num_parts, strict=True):
        of_tier = range(begin, begin + size)
        tiers.append(
            Tier(
                tuple(rows[list(of_tier[part::parts])].contiguous() for part in range(parts)),
                () if scale is None else tuple(scale[list(of_tier[p::parts])].clone() for p in range(parts)),
            )
        )
        begin += size
    given = rows if scale is None else rows * scale[:, None]
    positions = None
    if draw(st.booleans()):
        positions = torch.randperm(num_rows, generator=generator)[: draw(st.integers(0, num_rows))]
        given = given[positions]
        positions = positions.to(draw(st.sampled_from((torch.int32, torch.int64))))
    some = st.lists(st.integers(0, len(given) - 1), max_size=12) if len(given) else st.just([])
    ids = torch.tensor(draw(some))
    return TierTable(tiers, positions), given, ids.long()
