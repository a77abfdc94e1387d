"""What organisers do with a round: dates, receipts, status, publication, the next round."""
