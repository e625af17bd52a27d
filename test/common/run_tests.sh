# The tests of one backend: run_tests.sh BACKEND FOLDER_OF_INI_FILES ops|models true|false|all [options of pytest]
if [ ! "$TEST_DIR" ]; then
    echo "TEST_DIR is not defined!" >&2
    exit 1
fi
BACKEND=$1 CONFIG_DIR=$(cd "$2" && pwd) DYNAMIC=$4
cd "${TEST_DIR%/}/${3%s}" || exit 1
shift 4

run_in() {
    python -m pytest -c "$CONFIG_DIR/$1.ini" --backend "$BACKEND" --dynamic "$2" "${@:3}" .
}
case $DYNAMIC in
    false) run_in static false "$@" ;;
    true) run_in dynamic true "$@" ;;
    all)
        run_in static false "$@"
        FAILED=$?
        run_in dynamic true "$@" && exit $FAILED
        ;;
    *)
        echo "DYNAMIC should in (true, false, all)" >&2
        exit 1
        ;;
esac
