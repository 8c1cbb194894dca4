# Two commands do everything on a fresh machine with Python 3.11: `make study` and `make test`.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV ?= .venv
BIN = $(VENV)/bin
READY = $(VENV)/ready

# A second environment, for tests that compare two versions of PyTorch: torch and numpy, and nothing else.
SECOND = .venv-second
SECOND_TORCH ?= torch==2.13.0
SECOND_READY = $(SECOND)/ready

.PHONY: help install study notebooks test second lab lint lock clean

help:
	@echo "make study    install into $(VENV) and run the main job (the study 'quick') into runs/quick"
	@echo "make notebooks  run the study, and keep its outputs in the notebooks of the repository"
	@echo "make test     install into $(VENV) and run the tests"
	@echo "make second   install another PyTorch into $(SECOND), with which the tests then compare this one"
	@echo "make lab      install into $(VENV) and open JupyterLab on the notebooks"
	@echo "make lint     check the style of code and notebooks"
	@echo "make lock     resolve the dependencies anew and write requirements.lock"
	@echo "make clean    remove $(VENV) and $(SECOND)"

# pip installs itself first: the versions that Python ships resolve large sets slowly.
$(READY): requirements.lock pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --progress-bar off --quiet -r requirements.lock
	$(BIN)/python -m pip install --quiet --no-deps --editable .
	touch $(READY)

install: $(READY)

study: $(READY)
	$(BIN)/sortlib study quick

notebooks: study
	$(BIN)/python -m sortlib.committed runs/quick runs/sweep-tiny

$(SECOND_READY):
	$(PYTHON) -m venv $(SECOND)
	$(SECOND)/bin/python -m pip install --progress-bar off --quiet "$(SECOND_TORCH)" numpy
	touch $(SECOND_READY)

second: $(SECOND_READY)

test: $(READY)
	$(BIN)/python -m pytest

lab: $(READY)
	$(BIN)/jupyter lab notebooks

lint: $(READY)
	$(BIN)/ruff check sortlib tests notebooks
	$(BIN)/ruff format --check sortlib tests

# The accelerator libraries that torch needs exist for Linux only, so their lines carry a marker.
lock:
	rm -rf $(VENV).lock
	$(PYTHON) -m venv $(VENV).lock
	$(VENV).lock/bin/python -m pip install --quiet --upgrade pip
	$(VENV).lock/bin/python -m pip install --quiet --editable '.[openmmlab,test]'
	$(VENV).lock/bin/python -m pip freeze --exclude-editable \
		| sed -E 's/^((nvidia|cuda|triton)[^;]*)$$/\1 ; sys_platform == "linux"/' > requirements.lock
	rm -rf $(VENV).lock

clean:
	rm -rf $(VENV) $(SECOND)
