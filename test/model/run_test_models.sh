# Another name of run_test_model.sh.
exec bash "$(dirname "${BASH_SOURCE[0]}")/run_test_model.sh" "$@"
