"""Lanes over the permuted shards, the order of an epoch, and the permutation that both need.

The concatenation of the permuted shards is cut into lanes, stretches of nearly equal length, each
permuted in windows. Position p of the epoch is sample p div C of lane p mod C, so each batch draws
from all lanes (or from an even selection of them), while a rank that takes the same slice of each
batch reads the same stretch of the concatenation, and so few shards.

The permutation of range(n) is keyed, pseudo-random and in constant memory: index in, index out. It
is a Feistel network over pairs (left, right) with left in [0, a) and right in [0, b), where a * b
is the smallest such rectangle of nearly equal sides that holds the domain. Each round adds to one
half, modulo its side, a keyed hash of the other half; that can be undone, so the network is a
bijection of [0, a * b). An image outside the domain is enciphered again until it falls inside
(cycle walking), which makes it a bijection of the domain itself.

Sources: Black and Rogaway, "Ciphers with arbitrary finite domains", 2002 (both constructions). The
hash is no cipher: it shuffles data well and keeps no secrets.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from headrace.sampling.seeds import GOLDEN, combine

UInts = NDArray[np.uint64]
Ints = NDArray[np.int64]

_ROUND_MULTIPLIERS = tuple(
    np.uint64(multiplier)
    for multiplier in (
        # Odd 64-bit numbers without structure: successive outputs of splitmix64(0), made odd.
        0xE220A8397B1DCDAF, 0x6E789E6AA1B965F5, 0x06C45D188009454F, 0xF88BB8A8724C81ED,
        0x1B39896A51A8749B, 0x53CB9F0C747EA2EB, 0x2C829ABE1F4532E1, 0xC584133AC916AB3D,
        0x3EE5789041C98AC3, 0xF3B8488C368CB0A7, 0x657EECDD3CB13D09, 0xC2D326E0055BDEF7,
    )
)  # fmt: skip
"""One for each round; rounds shift the left and the right half in turn.

Twelve, because tiny domains (the short windows at a lane's ends) need them: with eight, the
frequencies of the pairs that two neighbours of a domain of 6 are sent to deviate by 14 % (root mean
square over 40,000 keys, sampling noise taken off), with twelve by 4 %. From 20 on, eight would do.
"""

_MIXER = np.uint64(0x94D049BB133111EB)
_HALF = np.uint64(32)


def permute(index: UInts, size: int | UInts, key: int | UInts) -> UInts:
    """Return where a keyed random permutation of [0, size) sends each index.

    Args:
        index: uint64[k], each below its size.
        size: The domain's size, 1 to 2^62: one for all, or uint64[k].
        key: Which permutation: one well-mixed 64-bit number for all, or uint64[k].

    Returns:
        uint64[k]. For one size and key, distinct indices have distinct images.
    """
    sizes, keys = (np.atleast_1d(np.asarray(each, dtype=np.uint64)) for each in (size, key))
    left_side = np.ceil(np.sqrt(sizes)).astype(np.uint64)
    right_side = (sizes + left_side - np.uint64(1)) // left_side
    image = _encipher(index, left_side, right_side, keys)
    outside = np.flatnonzero(image >= sizes)
    while outside.size:
        columns = (left_side, right_side, keys, sizes)
        left, right, key, size = (each if each.size == 1 else each[outside] for each in columns)
        again = _encipher(image[outside], left, right, key)
        image[outside] = again
        outside = outside[again >= size]
    return image


def mix64_array(values: UInts) -> UInts:
    """Return `headrace.sampling.seeds.mix64` of each value: uint64[k] to uint64[k]."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def _encipher(index: UInts, left_side: UInts, right_side: UInts, key: UInts) -> UInts:
    right = index // left_side
    left = index - right * left_side
    for round_number, multiplier in enumerate(_ROUND_MULTIPLIERS):
        if round_number % 2 == 0:
            left = _shifted(left, right, left_side, key, multiplier)
        else:
            right = _shifted(right, left, right_side, key, multiplier)
    right *= left_side
    right += left
    return right


def _shifted(half: UInts, other: UInts, side: UInts, key: UInts, multiplier: np.uint64) -> UInts:
    """Return (half + hash(other, key)) modulo side, without a division."""
    shift = other + key
    shift *= multiplier
    shift ^= shift >> _HALF
    shift *= _MIXER
    shift >>= _HALF
    # The hash is now 32 bits wide; its product with side / 2^32 is a shift in [0, side).
    shift *= side
    shift >>= _HALF
    shift += half
    # Where shift < side, shift - side wraps to a huge number and the minimum keeps shift.
    np.minimum(shift, shift - side, out=shift)
    return shift


DEFAULT_LANES = 64
"""A batch of 256 then mixes 64 to 128 shards, and a job reads from about 128 at a time."""

SMALLEST_DEFAULT_WINDOW = 128
"""Shards of fewer samples than this share a window. 64 lanes of 128 samples are 8,192 samples in
reach, which fits any cache, and mix as well as shards of 128 samples would."""

_LANE_KEYS, _LANE_OFFSETS = 1, 2


def lanes_for(global_batch: int) -> int:
    """Return the lane count nearest 64 that divides the global batch or is divided by it.

    If larger than the global batch B it is B times a power of two, so that lanes spread over
    batches evenly (see `places_of_lanes`). Where none is in 32 to 128, it is 64.
    """
    multiples = [global_batch << doublings for doublings in range(DEFAULT_LANES.bit_length() + 1)]
    divisors = [count for count in range(1, 2 * DEFAULT_LANES + 1) if global_batch % count == 0]
    # Nearest as a ratio; of two equally near, the larger mixes better.
    return min(
        (each for each in multiples + divisors if 1 / 2 <= each / DEFAULT_LANES <= 2),
        key=lambda count: (max(count / DEFAULT_LANES, DEFAULT_LANES / count), -count),
        default=DEFAULT_LANES,
    )


def default_window(num_samples: int, num_shards: int) -> int:
    """Return the default window in samples: one mean shard, or 128 where shards are smaller."""
    return max(SMALLEST_DEFAULT_WINDOW, -(-num_samples // num_shards))


def places_of_lanes(lanes: int) -> Ints:
    """Return each lane's place along the concatenation: int64[lanes], lane number to place.

    Where the global batch B is smaller than the lane count C, a batch draws from B lanes with
    consecutive numbers. They have to lie evenly over the concatenation, one in each of B equal
    parts: then each batch mixes the whole of it, and a slice of a batch always comes from the same
    part. For C = m * 2^t with m odd this does it for every B = m * 2^j: a lane's number is read as
    one digit below m and t bits, and its place has the bits reversed behind that digit
    (van der Corput's sequence in mixed radix).
    """
    twos = lanes & -lanes
    odd = lanes // twos
    number = np.arange(lanes, dtype=np.int64)
    digit, bits = number % odd, number // odd
    reversed_bits = np.zeros(lanes, dtype=np.int64)
    for bit in range(twos.bit_length() - 1):
        reversed_bits = (reversed_bits << 1) | ((bits >> bit) & 1)
    return digit * twos + reversed_bits


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Lanes:
    """C lanes over a concatenation of samples, each permuted window by window; arrays have [C]."""

    window: int  # W, in samples
    places: Ints  # lane number to its rank along the concatenation
    begins: UInts  # in the concatenation
    lengths: UInts  # in samples
    offsets: UInts  # by how much the lane's first window is cut short, below W
    keys: UInts  # of the lane's permutations

    @property
    def count(self) -> int:
        """C, the number of lanes."""
        return len(self.places)

    def find(self, positions: Ints) -> Ints:
        """Return the place in the concatenation of each position of the epoch: int64[k]."""
        count, window = np.uint64(self.count), np.uint64(self.window)
        position = positions.astype(np.uint64)
        step = position // count
        lane = (position - step * count).astype(np.intp)
        offset, length = self.offsets[lane], self.lengths[lane]
        number = (step + offset) // window
        first = number * window
        # The first window begins at the lane's begin, the last ends at the lane's end.
        start = np.maximum(first, offset) - offset
        stop = np.minimum(first + window - offset, length)
        keys = mix64_array(self.keys[lane] + number * np.uint64(GOLDEN))
        found = permute(step - start, stop - start, keys)
        found += start
        found += self.begins[lane]
        return found.view(np.int64)


def cut_lanes(*, num_samples: int, lanes: int, window: int, key: int) -> Lanes:
    """Cut a concatenation of samples into lanes with seeded windows.

    Lane l has ceil((num_samples - l) / lanes) samples. All numbers are at least 1; `key` derives
    from dataset, seed and epoch.
    """
    places = places_of_lanes(lanes)
    number = np.arange(lanes, dtype=np.int64)
    lengths = np.maximum(num_samples - number + lanes - 1, 0) // lanes
    by_place = np.argsort(places)
    ends = np.cumsum(lengths[by_place])
    begins = np.empty(lanes, dtype=np.int64)
    begins[by_place] = ends - lengths[by_place]
    offset_seed, key_seed = combine(key, _LANE_OFFSETS), combine(key, _LANE_KEYS)
    spread = number.astype(np.uint64) * np.uint64(GOLDEN)
    return Lanes(
        window=window,
        places=places,
        begins=begins.astype(np.uint64),
        lengths=lengths.astype(np.uint64),
        offsets=mix64_array(spread + np.uint64(offset_seed)) % np.uint64(window),
        keys=mix64_array(spread + np.uint64(key_seed)),
    )


_WHOLE, _SHARDS, _LANES = 1, 2, 3


class EpochOrder:
    """The order of one epoch, a bijection of [0, num_samples) onto itself: here the dataset's."""

    def samples_at(self, positions: Ints) -> Ints:
        """Return the dataset's sample number at each position: int64[k] to int64[k]."""
        return positions

    def order_in_batch(self, positions: Ints) -> Ints:
        """Return a batch's positions in the order in which ranks take slices of it."""
        return positions


@dataclass(frozen=True, kw_only=True)
class WholePermutation(EpochOrder):
    """One permutation of all samples: no locality, the best shuffle, no memory."""

    num_samples: int
    key: int  # derived from dataset, seed and epoch

    def samples_at(self, positions: Ints) -> Ints:
        """Return the permuted sample numbers of the positions."""
        indices = positions.astype(np.uint64)
        return permute(indices, self.num_samples, combine(self.key, _WHOLE)).view(np.int64)


@dataclass(frozen=True, kw_only=True, eq=False)
class ShardLanes(EpochOrder):
    """Permuted shards, laid end to end, cut into lanes."""

    lanes: Lanes
    ends: Ints  # int64[shards], where each shard of the concatenation ends in it
    shifts: Ints  # int64[shards], sample number minus place in the concatenation

    def samples_at(self, positions: Ints) -> Ints:
        """Return the sample at each position."""
        found = self.lanes.find(positions)
        found += self.shifts[self.shards_at(found)]
        return found

    def shards_at(self, found: Ints) -> Ints:
        """Return the shard, counted along the concatenation, that holds each place of it."""
        return np.searchsorted(self.ends, found, side="right").astype(np.int64)

    def order_in_batch(self, positions: Ints) -> Ints:
        """Return the positions in the order of their lanes along the concatenation."""
        return positions[np.argsort(self.lanes.places[positions % self.lanes.count], kind="stable")]


def lay_out_shards(*, shard_sizes: Ints, lanes: int, window: int, key: int) -> ShardLanes:
    """Permute shards, lay them end to end and cut the result into lanes (see `cut_lanes`).

    `shard_sizes` is int64[shards], samples of each shard in the order of the index.
    """
    count = len(shard_sizes)
    numbers = np.arange(count, dtype=np.uint64)
    shards = permute(numbers, count, combine(key, _SHARDS)).view(np.int64)
    first_samples = np.cumsum(shard_sizes) - shard_sizes
    ends = np.cumsum(shard_sizes[shards])
    return ShardLanes(
        lanes=cut_lanes(
            num_samples=int(ends[-1]), lanes=lanes, window=window, key=combine(key, _LANES)
        ),
        ends=ends,
        shifts=first_samples[shards] - (ends - shard_sizes[shards]),
    )
