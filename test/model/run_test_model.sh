# One model with one backend: run_test_model.sh llama|resnet50|... BACKEND true|false|all [options of pytest]
if [ ! "$TEST_DIR" ]; then
    echo "TEST_DIR is not defined!" >&2
    exit 1
fi
TEST=${TEST_DIR%/}/model/test_$1.py BACKEND=$2 DYNAMIC=$3
if [ ! -f "$TEST" ]; then
    echo "there is no model '$1'; there are:" "$TEST_DIR"/model/test_*.py >&2
    exit 1
fi
shift 3
cd "${TEST_DIR%/}/model" || exit 1
case $DYNAMIC in
    true | false | all) exec python -m pytest -c /dev/null --rootdir . "$TEST" --backend "$BACKEND" --dynamic "$DYNAMIC" "$@" ;;
esac
echo "DYNAMIC should in (true, false, all)" >&2
exit 1
