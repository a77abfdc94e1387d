"""The fourteen findings of ChestX-ray14, in the order of Wang et al. 2017 (arXiv:1705.02315).

Names are those of its table. Every array of labels or scores has a column for each.
"""

FINDINGS = (
    "Atelectasis",
    "Cardiomegaly",
    "Effusion",
    "Infiltration",
    "Mass",
    "Nodule",
    "Pneumonia",
    "Pneumothorax",
    "Consolidation",
    "Edema",
    "Emphysema",
    "Fibrosis",
    "Pleural_Thickening",
    "Hernia",
)
NO_FINDING = "No Finding"
BETWEEN_FINDINGS = "|"  # in the table
METRICS = tuple(f"auroc_{finding.lower()}" for finding in FINDINGS)
