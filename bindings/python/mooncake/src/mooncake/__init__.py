"""ferry under the name that software for Mooncake's Transfer Engine imports: `mooncake.engine`."""
