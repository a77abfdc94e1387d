"""The commands: argument parsing and printing only. Every file has main()."""
