"""Which completions of a step each rank computes: about as many tokens for each.

Completions that share a prompt stay together, since the prompt is then computed once for them
(`antiphon.learner.policy.micro_batches`); only where there are fewer groups than ranks is the
largest one parted. Groups go, largest first, to the rank that has least so far (longest processing
time first: at most 4/3 of the best there is; Graham 1969). Every rank works this out alike.
"""

from __future__ import annotations

from collections.abc import Sequence

from antiphon.learner.policy.micro_batches import Row

Pack = list[Row]


def balanced(rows: Sequence[Row], ranks: int) -> list[list[Row]]:
    """The rows of each rank, in the order in which they came.

    Args:
        rows: All completions of a step.
        ranks: How many ranks there are.
    """
    order = {id(row): place for place, row in enumerate(rows)}
    shares: list[list[Row]] = [[] for _ in range(ranks)]
    tokens = [0] * ranks
    for pack in sorted(_packs(rows, ranks), key=_tokens, reverse=True):
        least = tokens.index(min(tokens))
        shares[least] += pack
        tokens[least] += _tokens(pack)
    return [sorted(share, key=lambda row: order[id(row)]) for share in shares]


def _packs(rows: Sequence[Row], ranks: int) -> list[Pack]:
    """Completions by prompt, parted until every rank has some or none can be parted."""
    groups: dict[tuple[int, ...], Pack] = {}
    for row in rows:
        groups.setdefault(row.prompt_token_ids, []).append(row)
    packs = list(groups.values())
    while len(packs) < ranks:
        several = [place for place, pack in enumerate(packs) if len(pack) > 1]
        if not several:
            break
        largest = packs.pop(max(several, key=lambda place: _tokens(packs[place])))
        packs += [largest[::2], largest[1::2]]
    return packs


def _tokens(pack: Pack) -> int:
    return pack[0].prompt_length + sum(row.length for row in pack)
