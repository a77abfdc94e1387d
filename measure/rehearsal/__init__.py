"""The rehearsal of an accelerator: tasks on a device that only pretends to be one."""
