#!/bin/sh
# Runs a test with a PoCL cache for its slot of nextest: processes that share one compile one after the other.
if [ -n "$NEXTEST_TEST_GLOBAL_SLOT" ]; then
    POCL_CACHE_DIR="$POCL_CACHE_DIR/slot-$NEXTEST_TEST_GLOBAL_SLOT"
    mkdir -p "$POCL_CACHE_DIR"
    export POCL_CACHE_DIR
fi
exec "$@"
