"""`python -m rolloutfs`.

The import stands below the guard because a worker process imports this module again, under another name, and must not
load the command line and FUSE with it.
"""

if __name__ == "__main__":
    from rolloutfs.cli import main

    main()
