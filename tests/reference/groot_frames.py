"""Frames as GR00T's processors make them, in float64 with levels where the processors have levels; Pillow's filters are Pillow's, and what grows has OpenCV's integers."""
import numpy as np
from PIL import Image


def levels(x):
    return np.clip(np.rint(x), 0, 255).astype(np.uint8)


def separable(x, rows, columns):
    return levels(np.einsum("hy,wx,yxc->hwc", rows, columns, x.astype(np.float64), optimize=True))


def covered(n, to):
    """[to, n]: the share that each input has in what an output covers."""
    edges = np.arange(to + 1) * (n / to)
    k = np.arange(n)
    w = np.clip(np.minimum(edges[1:, None], k + 1) - np.maximum(edges[:-1, None], k), 0, None)
    return w / w.sum(1, keepdims=True)


def between(n, to):
    """First input, second input and their weights of 11 bits: INTER_AREA where pixels grow. An output lies in one input, or on the border to the next."""
    at = np.arange(to)
    first = np.floor(at * (1 / (to / n))).astype(int)
    share = np.float32((at + 1) - (first + 1) * (to / n))
    share = np.where(share <= 0, np.float32(0), share - np.floor(share))
    weights = (np.rint((1 - share) * np.float32(2048)).astype(int), np.rint(share * np.float32(2048)).astype(int))
    return np.minimum(first, n - 1), np.minimum(first + 1, n - 1), *weights


def grown(x, h, w):
    """OpenCV's integers: columns in 19 bits, then lines of their upper 15."""
    x = x.astype(int)
    left, right, a, b = between(x.shape[1], w)
    x = x[:, left] * a[:, None] + x[:, right] * b[:, None]
    above, below, a, b = between(x.shape[0], h)
    return ((((x[above] >> 4) * a[:, None, None]) >> 16) + (((x[below] >> 4) * b[:, None, None]) >> 16) + 2 >> 2).astype(np.uint8)


def cubic(n, to):
    scale = n / to
    wide = max(scale, 1)
    centre, k = (np.arange(to)[:, None] + 0.5) * scale, np.arange(n)[None]
    t = np.abs((k - centre + 0.5) / wide)
    w = np.where(t < 1, (1.5 * t - 2.5) * t * t + 1, np.where(t < 2, (((t - 5) * t + 8) * t - 4) * -0.5, 0))
    w *= (k >= np.trunc(centre - 2 * wide + 0.5)) & (k < np.trunc(centre + 2 * wide + 0.5))
    return w / w.sum(1, keepdims=True)


def area(x, h, w):
    if x.shape[:2] == (h, w):
        return x
    if h > x.shape[0] or w > x.shape[1]:
        return grown(x, h, w)
    if (x.shape[0], x.shape[1]) == (2 * h, 2 * w):  # halves go up
        return ((x.reshape(h, 2, w, 2, 3).astype(int).sum((1, 3)) + 2) >> 2).astype(np.uint8)
    return separable(x, covered(x.shape[0], h), covered(x.shape[1], w))


def bicubic(x, h, w):
    return x if x.shape[:2] == (h, w) else separable(x, cubic(x.shape[0], h), cubic(x.shape[1], w))


def pillow(x, h, w, filter):
    return np.asarray(Image.fromarray(x).resize((w, h), filter))


def squared(x):
    side = max(x.shape[:2])
    out = np.zeros((side, side, 3), np.uint8)
    top, left = (side - x.shape[0]) // 2, (side - x.shape[1]) // 2
    out[top:top + x.shape[0], left:left + x.shape[1]] = x
    return out


def shortest(x, edge, resize):
    h, w = x.shape[:2]
    scale = edge / min(h, w)
    return x if min(h, w) == edge else resize(x, max(1, round(h * scale)), max(1, round(w * scale)))


def processed(x, kind, side, least, image_target_size=None, image_crop_size=None, shortest_image_edge=None, crop_fraction=None, letter_box_transform=False, area=area, **_):
    """The frame as the vision tower takes it. `side`, `least`: of a token; pixels that the language model's processor wants."""
    x = squared(x) if letter_box_transform else x
    edge = shortest_image_edge or image_target_size[0]
    fraction = crop_fraction or (image_crop_size[0] / image_target_size[0] if image_crop_size else 1)
    if kind == "area":
        x = shortest(x, edge, area)
        h, w = (max(1, int(n * fraction)) for n in x.shape[:2])
    elif kind == "bicubic":
        x = bicubic(x, edge, edge)
        h, w = (max(1, round(n * fraction)) for n in x.shape[:2])
    else:
        x = pillow(x, *image_target_size, Image.Resampling.BILINEAR)
        h, w = image_crop_size or image_target_size
    top, left = ((a - b) / 2 for a, b in zip(x.shape[:2], (h, w)))
    top, left = (round(top), round(left)) if kind == "bilinear" else (int(top), int(left))
    x = x[top:top + h, left:left + w]
    x = shortest(x, edge, area) if kind == "area" else bicubic(x, *image_target_size) if kind == "bicubic" else pillow(x, *image_target_size, Image.Resampling.BILINEAR)
    h, w = (max(side, round(n / side) * side) for n in x.shape[:2])
    if h * w < least:
        grow = (least / (x.shape[0] * x.shape[1])) ** 0.5
        h, w = (int(np.ceil(n * grow / side)) * side for n in x.shape[:2])
    return x if x.shape[:2] == (h, w) else pillow(x, h, w, Image.Resampling.BICUBIC)
