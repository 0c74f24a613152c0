"""forebay-data: turns text, prompts and chats into packed token files, and GGUF files into model folders.

The forebay binary runs this program as git runs git-foo. docs/formats.md describes its commands and files.
"""

# Part of every cache key: raise it whenever the same input would be packed into other bytes.
PACKER_VERSION = 3
# Tokens per row of text where --seq is not given, as `forebay train` has it.
DEFAULT_SEQ = 1024
