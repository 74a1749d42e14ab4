"""What a configuration accepts, and how it explains what it refuses."""

from pathlib import Path
from typing import ClassVar

import pytest

from dimred.config import (
    MethodConfig,
    ModelConfig,
    SearchConfig,
    StageConfig,
    StageOneConfig,
    StageTwoConfig,
    StopConfig,
    config_text,
    load_config,
)
from dimred.errors import ConfigError

CONFIGS = Path(__file__).parents[2] / "pipelines" / "configs"
OF_STUDIES = Path(__file__).parents[1] / "studies"

STAGES = pytest.mark.parametrize("stage", [StageOneConfig, StageTwoConfig])
RECIPES = ["digits", "digits_cooldown", "imagenet", "imagenet_cooldown"]


@STAGES
@pytest.mark.parametrize("recipe", RECIPES)
def test_a_saved_configuration_reads_back_equal(
    recipe: str, stage: type[StageOneConfig | StageTwoConfig], tmp_path: Path
) -> None:
    config = load_config(stage, Path(recipe), ["seed=11", "data.batch_size=8"])
    assert (config.seed, config.data.batch_size) == (11, 8)
    (tmp_path / "saved.yaml").write_text(config_text(config))
    assert load_config(stage, tmp_path / "saved.yaml") == config


@pytest.mark.parametrize("recipe", RECIPES)
def test_stage_2_reads_in_the_folder_of_stage_1_what_stage_1_was_told(recipe: str, tmp_path: Path) -> None:
    """Its own values of the shared keys are stage 1's, unless its section has others."""
    one = load_config(StageOneConfig, Path(recipe), ["seed=11", "data.workers=3", "accumulation=2", "ema.decay=0.9"])
    (tmp_path / "config.yaml").write_text(config_text(one))
    two = load_config(StageTwoConfig, tmp_path / "config.yaml")
    assert two == one.following
    assert (two.seed, two.data.workers, two.accumulation, two.ema.decay) == (11, 3, 2, 0.9)
    assert two.model_copy(update={key: getattr(one, key) for key in ("seed", "accumulation", "ema", "data")}) == (
        load_config(StageTwoConfig, Path(recipe)).model_copy(
            update={"seed": 11, "accumulation": 2, "ema": one.ema, "data": one.data}
        )
    )


def test_a_stage_s_section_lies_over_the_shared_part_key_by_key(tmp_path: Path) -> None:
    file = tmp_path / "own.yaml"
    file.write_text(
        "precision: {level: O2, dtype: bfloat16}\ndata: {batch_size: 8, workers: 5}\n"
        "stage_1: {data: {batch_size: 4}, epochs: 9}\nstage_2: {precision: {level: O0}, search: {rho: 0.5}}\n"
    )
    one, two = load_config(StageOneConfig, file), load_config(StageTwoConfig, file, ["data.workers=7"])
    assert (one.precision.level, one.data.batch_size, one.data.workers, one.epochs) == ("O2", 4, 5, 9)
    assert (two.precision.level, two.precision.dtype) == ("O0", "bfloat16")
    assert (two.data.batch_size, two.data.workers, two.method, two.epochs) == (8, 7, "search", 2)
    assert load_config(StageConfig, file).data.batch_size == 8


@pytest.mark.parametrize(("recipe", "method"), [("digits", "cooldown"), ("digits_cooldown", "search")])
def test_the_other_method_takes_its_defaults_and_nothing_of_the_file_s_stage_2(recipe: str, method: str) -> None:
    two = load_config(StageTwoConfig, Path(recipe), [f"method={method}"])
    assert two == load_config(StageTwoConfig, Path(recipe), [f"method='{method}'"])
    one = load_config(StageOneConfig, Path(recipe))
    shared = {key: getattr(one, key) for key in StageConfig.model_fields}
    assert two == StageTwoConfig(method=method).model_copy(update=shared)
    assert two.epochs == {"search": 2, "cooldown": "10%"}[method]
    same = load_config(StageTwoConfig, Path(recipe), [f"method={load_config(StageTwoConfig, Path(recipe)).method}"])
    assert same == load_config(StageTwoConfig, Path(recipe))


def test_the_recipes_of_the_studies_have_no_unknown_key() -> None:
    recipes = list(OF_STUDIES.glob("*.yaml"))
    assert len(recipes) > 1
    for recipe in recipes:
        assert load_config(StageOneConfig, recipe).following.data.dataset


def refusal(recipe: str, *overrides: str, stage: type[StageConfig] = StageTwoConfig) -> str:
    """Return the error about a recipe with these overrides."""
    with pytest.raises(ConfigError) as refused:
        load_config(stage, Path(recipe), overrides)
    return str(refused.value)


def test_a_file_is_refused_with_every_mistake_in_either_section(tmp_path: Path) -> None:
    """Stage 1 would otherwise train for a week before stage 2 finds its own."""
    file = tmp_path / "own.yaml"
    file.write_text(
        "label_smoothin: 0.1\nepochs: 3\nschedule: {peak: 1}\nboost_level: O1\ndim_reduce: {rho: 0.5, timeout: 9}\n"
        "stage_1: {epoch: 3, data: {batchsize: 3}}\nstage_2: {serach: {}, cooldown: {factor: 1}, keep_best: true}\n"
    )
    assert refusal(str(file), stage=StageOneConfig).splitlines() == [
        "unknown key 'label_smoothin'; did you mean 'label_smoothing'?",
        "epochs is not a shared key; move it to stage_1 or stage_2",
        "schedule is not a shared key; move it to stage_1",
        "boost_level is not a key: leave it out; stage_2.method says what stage 2 does",
        "dim_reduce.rho is not a key: set search.rho of stage_2",
        "dim_reduce.timeout is not a key: use dimred train --stall-timeout",
        "unknown key 'data.batchsize'; did you mean 'data.batch_size'?",
        "unknown key 'epoch'; did you mean 'epochs'?",
        "stage_2: unknown key 'serach'; did you mean 'search'?",
        "stage_2: unknown key 'keep_best'; did you mean 'cooldown.keep_best'?",
        f"(in {str(file)!r})",
    ]
    file.write_text("stage_2: digits_stage\n")
    assert "stage_2 is 'digits_stage'; it must be a section of keys and values" in refusal(str(file))


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("epoch=3", "unknown key 'epoch'; did you mean 'epochs'?"),
        ("data.batchsize=3", "unknown key 'data.batchsize'; did you mean 'data.batch_size'?"),
        ("dat.batch_size=3", "unknown key 'dat'; did you mean 'data'?"),
        ("batch_size=3", "unknown key 'batch_size'; did you mean 'data.batch_size'?"),
        ("data.colour=3", "unknown key 'data.colour'; allowed in data: dataset, image_size, batch_size, "),
        ("zz=3", "unknown key 'zz'; allowed: seed, mode, model, data, "),
        ("schedule.peak=3", "--set is 'schedule.peak=3', but schedule is a key of stage_1; leave it out here"),
        ("stage_2.search.rho=1", "--set takes keys of the stage that runs, such as search.rho=...; set stage 2's with"),
        ("optimizer.name=sgd", "optimizer is a key of stage_1; leave it out here"),
        ("keep_best=false", "unknown key 'keep_best'; did you mean 'cooldown.keep_best'?"),
        (
            "cooldown.factor=0.1",
            "cooldown.factor can't be set, because method is search, not cooldown; leave that out, or use",
        ),
        ("method=both", "method is 'both'; allowed: search, cooldown, or your own by package.module:factory"),
        ("search.rho=1", "search.rho is 1; it must be less than 1"),
        ("epochs=0%", "epochs is '0%'; it must be a whole number of at least 1, or a fraction of all passes below"),
        ("search.n_components=0", "search.n_components is 0; it must be greater than or equal to 1"),
        ("n_components=32", "unknown key 'n_components'; did you mean 'search.n_components'?"),
        ("search=sgd", "search is 'sgd'; it must be a section of keys and values"),
        ("search=null", "search is None; it must be a section of keys and values"),
        ("search.alpha=.nan", "search.alpha is nan; it must be a finite number"),
        ("search.rule=newton", "search.rule is 'newton'; it must be 'bfgs' or 'sgd'"),
        ("model=resnet50", "model is 'resnet50'; it must be a section of keys and values"),
        ("model.name=vgg", "model.name is 'vgg'; allowed: resnet50, resnet18, resnet_small, lenet, or your own"),
        ("save_every_steps=yes", "save_every_steps is True; it must be a valid integer"),
        ("ema.decay=off", "ema.decay is False; it must be a valid number"),
        ("tensorboard=perhaps", "tensorboard is 'perhaps'; it must be a valid boolean"),
        ("search.learning_rate=[0.1]", "search.learning_rate is [0.1]; it must be a valid number"),
        ("data.mean=[true, 1, 2]", "data.mean is [True, 1, 2]; true and false can't be in this list"),
        ("all_reduce_split=[on]", "all_reduce_split is [True]; true and false can't be"),
        ("dim_reduce.rho=0.5", "dim_reduce.rho is not a key: set search.rho of stage_2"),
        ("dim_reduce={n_component: 8}", "dim_reduce.n_component is not a key: set search.n_component of stage_2"),
        ("boost={mode: manual, dim_reduce: true}", "boost is not a key: leave it out; stage_2.method says"),
        ("search={dim_reduce: {n_components: 8}}", "dim_reduce.n_components is not a key: set search.n_components"),
        ("boost_config_dict={dim_reduce: {sigma: 0.4}}", "dim_reduce.sigma is not a key: set search.sigma of stage_2"),
        ("search.pca_mat_path=a.npy", "search.pca_mat_path is not a key: give the argument PCA_MAT of dimred train"),
        ("dim_reduce.weight_load_dir=a", "dim_reduce.weight_load_dir is not a key: give it to dimred pca --ckpt-dir"),
        ("device_number=8", "device_number is not a key: use dimred train --devices"),
        ("lr=0.1", "lr is not a key: set schedule.peak, or in a cooldown cooldown.factor"),
        ("dat={batch_size: 3}", "unknown key 'dat'; did you mean 'data'?"),
        ("search.n_component=0", "search.n_components is 0; it must be greater than or equal to 1"),
        ("data.mean=[1, 2]", "data.mean has 2 values and data.std 3; give each three values, or one for grey images"),
        ("data.mean=[]", "data.mean has 0 values and data.std 3; give each three values"),
        (
            "data.dataset=imagenet",
            "data.dataset is 'imagenet'; allowed: image_folder, mnist, cifar10, cifar100, or",
        ),
        ("data={flip: true, augmentation: none}", "data.flip is for pad_crop, but data.augmentation is none; leave it"),
        ("all_reduce_split=[0]", "all_reduce_split is [0]; it must be greater than or equal to 1"),
        (
            "precision.casts={a: int8}",
            "precision.casts is {'a': 'int8'}; it must be 'float16', 'bfloat16' or 'float32'",
        ),
        ("loss_scale={name: dynamic, scale: 0.5}", "loss_scale.scale is 0.5; it must lie between smallest (1) and"),
        ("epochs.low=3", "'epochs' is a value"),
        ("rho", "expected key=value"),
        ("rho=[1", "not valid YAML"),
    ],
)
def test_a_wrong_override_is_refused_by_name(override: str, said: str) -> None:
    assert said in refusal("digits", override)


@pytest.mark.parametrize(
    ("recipe", "overrides", "said"),
    [
        ("digits_1", ["epochs=91"], "epochs is 91, past schedule.total_epochs, 90; raise that"),
        ("digits_1", ["data.std=[0, 1, 1]"], "data.std is [0, 1, 1]; it must be greater than 0"),
        ("digits_1", ["data.mean=[300, 1, 1]"], "data.mean is [300, 1, 1]; it must be less than"),
        ("digits_1", ["epochs=900001"], "epochs is 900001; it must be less than or equal to 900000"),
        (
            "digits_cooldown_1",
            ["epochs=2"],
            "and epochs is 2; keep at least two and take the first by the last epoch, or set stop",
        ),
        ("digits_1", ["data.sink=true", "accumulation=2"], "data.sink needs batches of one shape"),
        ("digits_1", ["stop=val"], "stop.name is 'val'; it must be 'averaged'"),
        ("digits_1", ["stop=averaged", "snapshots.keep=1"], "stop averages snapshots"),
        ("digits_1", ["stop=averaged", "snapshots.first_epoch=71"], "stop averages snapshots"),
        ("digits_2", ["search.learning_rate=5"], "learning_rate is an option of the rule sgd, but rule is bfgs"),
        ("digits_2", ["search.rule=sgd", "search.rho=0.6"], "rho is an option of the rule bfgs, but rule is sgd"),
        (
            "digits_cooldown_2",
            ["search.alpha=0.1"],
            "search.alpha can't be set, because method is cooldown, not search",
        ),
        ("digits_cooldown_2", ["reestimate_batch_norm=false"], "reestimate_batch_norm is false, but the networks that"),
        (
            "digits_2",
            ["cooldown.optimizer.name=sgd"],
            "cooldown.optimizer.name can't be set, because method is ",
        ),
    ],
)
def test_keys_that_do_not_go_together_are_refused(recipe: str, overrides: list[str], said: str) -> None:
    stage = StageOneConfig if recipe.endswith("_1") else StageTwoConfig
    assert said in refusal(recipe[:-2], *overrides, stage=stage)


def test_a_text_in_place_of_a_number_is_refused_without_the_words_of_the_parser() -> None:
    assert refusal("digits", "save_every_steps=two") == "save_every_steps is 'two'; it must be a valid integer"


def test_every_problem_is_named_at_once() -> None:
    lines = refusal("digits", "search.rho=2", "search.gamma=-1", "search.aplha=0").splitlines()
    assert {line.split()[0] for line in lines} == {"search.rho", "search.gamma", "unknown"}


def test_the_name_that_boost_users_know_is_accepted() -> None:
    assert SearchConfig.model_validate({"n_component": 7}).n_components == 7
    recipe = Path("digits")  # which has n_components
    assert load_config(StageTwoConfig, recipe, ["search.n_component=5"]).search.n_components == 5
    for both in (["search.n_components=9", "search.n_component=5"], ["search.n_component=5", "search.n_components=9"]):
        with pytest.raises(
            ConfigError, match=r"--set has search\.n_component and search\.n_components, two names for one"
        ):
            load_config(StageTwoConfig, recipe, both)
    with pytest.raises(ConfigError, match=r"search\.n_components is -1; it must be greater than or equal to 1"):
        StageTwoConfig.checked({"search": {"n_component": -1}})


@pytest.mark.parametrize("in_file", ["n_component", "n_components"])
@pytest.mark.parametrize("typed", ["n_component", "n_components"])
def test_an_override_reaches_the_key_by_whichever_name_the_file_has(in_file: str, typed: str, tmp_path: Path) -> None:
    (tmp_path / "own.yaml").write_text(f"stage_2: {{search: {{{in_file}: 32, rho: 0.5}}}}")
    search = load_config(StageTwoConfig, tmp_path / "own.yaml", [f"search.{typed}=4", "search.sigma=0.3"]).search
    assert (search.n_components, search.rho, search.sigma) == (4, 0.5, 0.3)
    (tmp_path / "both.yaml").write_text("stage_2: {search: {n_component: 32, n_components: 32}}")
    with pytest.raises(ConfigError, match=r"unknown key 'search\.n_component'; did you mean 'search\.n_components'"):
        load_config(StageTwoConfig, tmp_path / "both.yaml")


def test_every_key_of_a_wrong_type_has_one_line() -> None:
    wrong = {name: object() for name in StageOneConfig.model_fields}
    with pytest.raises(ConfigError) as refused:
        StageOneConfig.checked(wrong)
    lines = str(refused.value).splitlines()
    assert len(lines) == len(wrong)
    assert not any("Input" in line or "Config" in line or "pydantic" in line for line in lines)


def test_a_constant_rate_has_no_end() -> None:
    constant = ["schedule.name=constant", "schedule.total_epochs=1", "epochs=500"]
    config = load_config(StageOneConfig, Path("digits"), constant)
    assert (config.schedule.last_epoch, config.schedule.horizon(config.epochs)) == (None, 500)
    assert config.schedule.horizon(1) == 6  # the warm-up of 5 epochs must end


def test_the_rule_that_ends_stage_1_is_a_name_or_a_section_that_any_of_its_keys_turns_on(tmp_path: Path) -> None:
    (tmp_path / "saved.yaml").write_text(config_text(StageOneConfig()))
    assert "stop: null" in (tmp_path / "saved.yaml").read_text()
    for overrides, rule in (
        (["stop=averaged"], StopConfig()),
        (["stop.patience=7"], StopConfig(patience=7)),
        (["stop=averaged", "stop.patience=7"], StopConfig(patience=7)),
    ):
        assert load_config(StageOneConfig, tmp_path / "saved.yaml", overrides).stop == rule


def test_a_key_that_is_there_twice_is_refused_but_not_one_that_an_anchor_gives(tmp_path: Path) -> None:
    file = tmp_path / "twice.yaml"
    file.write_text("ema: {decay: 0.9}\nseed: 2\nema: {ramp: true}\n")
    with pytest.raises(ConfigError, match=r"the key 'ema' is given twice .*line 3"):
        load_config(StageOneConfig, file)
    file.write_text("stage_1: {checkpoints: &b {<<: {keep: 3, every_epochs: 1}, keep: 2}}\n")
    assert load_config(StageOneConfig, file).checkpoints.keep == 2


@pytest.mark.parametrize("text", ["data: &d {workers: 2, x: *d}", "&a {data: *a}", "data: &d [*d]", "[" * 1_000])
def test_a_value_that_contains_itself_or_never_ends_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "one.yaml").write_text(text)
    with pytest.raises(ConfigError, match="not valid YAML"):
        load_config(StageOneConfig, tmp_path / "one.yaml")


@pytest.mark.parametrize(("text", "number"), [("010", 10), ("08", 8), ("0_100", 100), ("0x10", 16), ("0b11", 3)])
def test_a_whole_number_is_read_as_it_looks(text: str, number: int, tmp_path: Path) -> None:
    (tmp_path / "seed.yaml").write_text(f"seed: {text}\n")
    assert load_config(StageOneConfig, tmp_path / "seed.yaml").seed == number
    assert load_config(StageOneConfig, None, [f"seed={text}"]).seed == number


@pytest.mark.parametrize("override", ["seed=1:10", "data.mean=[1:20, 80, 80]", "schedule.peak=0:00.5"])
def test_a_number_with_a_colon_is_refused(override: str) -> None:
    with pytest.raises(ConfigError, match=override.partition("=")[0]):
        load_config(StageOneConfig, None, [override])


def test_a_file_that_is_too_large_is_refused_whatever_its_letters(tmp_path: Path) -> None:
    for first in ("", "e"):
        (tmp_path / "large.yaml").write_text(f"#{first}{'é' * 50_000}\nseed: 7\n", encoding="utf-8")
        with pytest.raises(ConfigError, match="has more than 100,000 bytes"):
            load_config(StageOneConfig, tmp_path / "large.yaml")


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"none\.yaml', which can't be read \(No such file .*\); name a YAML file or a recipe$"
    ):
        load_config(StageOneConfig, tmp_path / "none.yaml")


@pytest.mark.parametrize(("name", "prefix"), [("resnet50", "resnet50"), ("my.networks:Holder.build", "Holder.build")])
def test_checkpoints_are_named_without_the_colon_of_an_own_network(name: str, prefix: str) -> None:
    assert ModelConfig(name=name).file_prefix == prefix


def test_the_length_of_stage_2_is_a_number_or_a_share_of_all_passes() -> None:
    def epochs(text: str, after: int | None) -> int:
        config = load_config(StageTwoConfig, Path("digits"), [f"epochs={text}"])
        return config.with_epochs_after(after).n_epochs

    assert [epochs("10%", after) for after in (1, 45, 46)] == [1, 5, 6]
    assert [epochs("12.5%", 70), epochs("1%", 3), epochs("3", None)] == [10, 1, 3]
    with pytest.raises(ConfigError, match="epochs is '10%' of all passes, but the name of WEIGHTS does not say"):
        epochs("10%", None)
    with pytest.raises(ConfigError, match=r"epochs is '10%' of all passes, but WEIGHTS are of epoch 0.*set epochs"):
        epochs("10%", 0)
    assert epochs("3", 0) == 3


@STAGES
def test_a_recipe_goes_by_its_name(stage: type[StageConfig], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    of_file = load_config(stage, CONFIGS / "digits.yaml")
    assert load_config(stage, Path("digits")) == of_file
    known = ", ".join(RECIPES)
    with pytest.raises(ConfigError, match=rf"'digit', which is not a file; give a YAML file, or a recipe: {known}"):
        load_config(stage, Path("digit"))
    Path("digits").mkdir()  # the data, perhaps
    assert load_config(stage, Path("digits")) == of_file
    Path("digits").rmdir()
    Path("digits").write_text("seed: 7\n")  # a file of that name is meant before a recipe
    assert load_config(stage, Path("digits")).seed == 7


class still(MethodConfig):  # noqa: N801
    """A method of a user's own, which trains nothing."""

    default_epochs: ClassVar[int | str] = 0
    width: float = 0.5
    """Its key."""


class data(MethodConfig):  # noqa: N801
    """A method with the name of a shared key."""


class needs_a_value(MethodConfig):  # noqa: N801
    width: float


OWN = f"method={__name__}:still"


def test_a_method_of_one_s_own_has_a_section_that_is_checked_saved_and_read_back(tmp_path: Path) -> None:
    two = load_config(StageTwoConfig, Path("digits"), [OWN, "still.width=2"])
    assert (two.method_name, two.method_config, two.n_epochs) == ("still", still(width=2), 0)
    (tmp_path / "saved.yaml").write_text(config_text(two))
    assert load_config(StageTwoConfig, tmp_path / "saved.yaml") == two
    saved = (tmp_path / "saved.yaml").read_text()
    assert "still:" in saved
    assert "search:" not in saved
    one = load_config(StageOneConfig, tmp_path / "saved.yaml")
    assert one.following == two


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["still.widht=2"], "unknown key 'still.widht'; did you mean 'still.width'?"),
        (["still.width=wide"], "still.width is 'wide'; it must be a valid number"),
        (
            ["search.rho=0.5"],
            "search.rho can't be set, because method is tests.config.test_config:still, not search; leave",
        ),
        (["epochs=2"], "epochs is 2, but the method still trains nothing; leave it out"),
        (["method=search", "epochs=0"], "epochs is 0; it must be a whole number of at least 1, or a fraction of all"),
        (["method=search", "still.width=2"], "unknown key 'still.width'; allowed: "),
        (["method=nowhere:still"], "method is 'nowhere:still', but 'nowhere' can't be imported"),
        (["method=pathlib:Path"], "method is 'pathlib:Path', which is not a class derived from dimred.config.MethodC"),
        ([f"method={__name__}:data"], "but data is the name of another key; give the class another name"),
        ([f"method={__name__}:needs_a_value"], "whose key 'width' has no valid default; give it one"),
    ],
)
def test_a_method_of_one_s_own_is_refused_by_name(overrides: list[str], said: str) -> None:
    assert said in refusal("digits", OWN, *overrides)
