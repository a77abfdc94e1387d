"""Old gradients and slow workers."""
