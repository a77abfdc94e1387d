"""How good the directions of K-FAC are, and what rounding does to them."""
