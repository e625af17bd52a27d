# Tests of models with the backend topsgraph: run_test_models.sh true|false|all [options of pytest]
HERE=$(dirname "${BASH_SOURCE[0]}")
exec bash "$HERE/../../common/run_tests.sh" topsgraph "$HERE" models "$@"
