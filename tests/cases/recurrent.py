from ampkit.testing import Case, normal

WIDTH, H, P = 3, 2, 1


def weights(gates, hidden=H, width=WIDTH, bias=True):
    found = [normal(gates * H, width), normal(gates * H, hidden)]
    return [*found, *([normal(gates * H), normal(gates * H)] if bias else [None, None])]


def layer(name, gates, rows, sizes, reverse=False, state=True, bias=True, smooth=True):
    hx = normal(sizes[0], H) if state else None
    return Case(name, normal(rows, WIDTH), hx, *weights(gates, bias=bias), sizes=sizes, reverse=reverse, smooth=smooth)


def lstm(rows, sizes, reverse=False, state=True, bias=True, projected=False):
    n, out = sizes[0], P if projected else H
    first = [normal(n, out), normal(n, H)] if state else [None, None]
    w_hr = normal(P, H) if projected else None
    given = weights(4, out, bias=bias)
    return Case("lstm", normal(rows, WIDTH), *first, *given, w_hr, sizes=sizes, reverse=reverse)


SITUATIONS = [
    {"rows": 6, "sizes": (2, 2, 2)},
    {"rows": 6, "sizes": (2, 2, 2), "reverse": True, "state": False},
    {"rows": 7, "sizes": (3, 3, 1), "bias": False},
    {"rows": 6, "sizes": (3, 2, 1), "reverse": True},
]

CASES = [
    Case("rnn_tanh_cell", normal(2, WIDTH), normal(2, H), *weights(1)),
    Case("rnn_relu_cell", normal(2, WIDTH), normal(2, H), *weights(1, bias=False), smooth=False),
    Case("gru_cell", normal(2, WIDTH), normal(2, H), *weights(3)),
    Case("lstm_cell", normal(2, WIDTH), (normal(2, H), normal(2, H)), *weights(4)),
    *(layer("rnn_tanh", 1, **each) for each in SITUATIONS[::3]),
    layer("rnn_relu", 1, 6, (3, 2, 1), smooth=False),
    *(layer("gru", 3, **each) for each in SITUATIONS[1:]),
    *(lstm(**each) for each in SITUATIONS),
    lstm(6, (3, 2, 1), projected=True),
    lstm(6, (3, 2, 1), projected=True, reverse=True, state=False, bias=False),
]
