"""Measurements that benchmarks add to `cepheid measure speed`: ``MEASUREMENTS`` of a module."""

MODULES = {  # where those of a benchmark are
    "galaxy_bnn": "galaxies",
    "galaxy_shape": "galaxies",
    "galaxy_vae": "galaxies",
    "gnmt": "gnmt",
    "kfac": "kfac",
    "mask_rcnn": "images",
    "resnet50": "images",
    "ssd": "images",
    "transformer": "transformer",
    "video_prediction": "video_prediction",
}
