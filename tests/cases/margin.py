from ampkit.testing import Case, integers, normal, uniform

CASES = [
    Case("multi_margin_loss", normal(5, 4), integers(0, 4, 5)),
    Case("multi_margin_loss", normal(5, 4), integers(0, 4, 5), 2, 0.5, uniform(0.5, 2, 4)),
    Case("multi_margin_loss", normal(5, 4), integers(0, 4, 5), 2, reduction="none"),
    Case("multi_margin_loss", normal(4), integers(0, 4), weight=uniform(0.5, 2, 4), reduction="sum"),
    Case("multilabel_margin_loss", normal(3, 4), integers(-1, 4, 3, 4)),
    Case("multilabel_margin_loss", normal(3, 4), integers(0, 4, 3, 4), reduction="none"),
    Case("multilabel_margin_loss", normal(6), integers(-1, 6, 6), reduction="sum"),
    Case("multilabel_soft_margin_loss", normal(3, 4), uniform(0, 1, 3, 4)),
    Case("multilabel_soft_margin_loss", normal(2, 3, 4), integers(0, 2, 2, 3, 4), uniform(0.5, 2, 4), reduction="none"),
    Case("multilabel_soft_margin_loss", normal(4), uniform(0, 1, 4), reduction="sum"),
    Case("triplet_margin_with_distance_loss", normal(3, 4), normal(3, 4), normal(3, 4), margin=5.0, smooth=False),
    Case(
        "triplet_margin_with_distance_loss", normal(3, 4), normal(3, 4), normal(3, 4), margin=5.0, swap=True,
        reduction="none", smooth=False,
    ),
]  # fmt: skip
