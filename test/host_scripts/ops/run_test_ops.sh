# Tests of ops with the backend hostgraph: run_test_ops.sh true|false|all [options of pytest]
HERE=$(dirname "${BASH_SOURCE[0]}")
exec bash "$HERE/../../common/run_tests.sh" hostgraph "$HERE" ops "$@"
