"""What datasets of boxes share: their truth and its comparison with detections, and augmentation.

Boxes are left, top, right, bottom. Those of images that a network sees are shares of their width
and height, so that they survive resizing; those of the truth are pixels of the original image.
"""
