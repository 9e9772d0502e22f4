# Plain `make` lists the targets.

SHELL       := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

GO   ?= go
NPM  ?= npm

# How long each fuzz target runs: FUZZTIME in `make test`, FUZZTIME_LONG in `make fuzz`.
FUZZTIME      ?= 3s
FUZZTIME_LONG ?= 1m

# The root module and the nested ones. A nested module keeps what only it needs out of the
# module graph of the library's users.
MODULES := $(patsubst %/,%,$(dir $(wildcard go.mod */go.mod)))

LINT_VERSION := v2.15.0
LINT         := $(CURDIR)/bin/golangci-lint-$(LINT_VERSION)

# A workspace that happens to lie in a parent folder must not decide what is tested.
export GOWORK := off

.PHONY: help
help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

##
## Tests
##

.PHONY: test
test: test-root test-fuzz test-peers test-bench ## Run all tests: the root module with -race, each fuzz target briefly, real peers

.PHONY: test-root
test-root: peers/node_modules/.package-lock.json ## Run the root module's tests with -race
	$(GO) test -race -timeout 15m ./...

# `go test -fuzz` takes one package and one target at a time. Sometimes it fails at its own
# deadline, with no input that fails: then it runs once more.
fuzz-all = \
	count=0; \
	while IFS= read -r dir; do \
		while IFS= read -r target; do \
			echo "fuzz $${dir\#"$(CURDIR)/"} $$target"; \
			run() { $(GO) test -run '^$$' -fuzz "^$$target\$$" -fuzztime $(1) "$$dir" </dev/null 2>&1; }; \
			out=$$(run) || case $$out in \
				*'Failing input'*) false ;; \
				*'context deadline exceeded'*) out=$$(run) ;; \
				*) false ;; \
			esac || { echo "$$out"; exit 1; }; \
			tail -n 1 <<<"$$out"; \
			count=$$((count + 1)); \
		done < <(grep -hoE '^func Fuzz[A-Za-z0-9_]*' "$$dir"/*_test.go | awk '{ print $$2 }'); \
	done < <($(GO) list -f '{{if or .TestGoFiles .XTestGoFiles}}{{.Dir}}{{end}}' ./...); \
	echo "$$count fuzz targets, $(1) each"

.PHONY: test-fuzz
test-fuzz: ## Run each fuzz target for FUZZTIME (3s)
	@$(call fuzz-all,$(FUZZTIME))

.PHONY: fuzz
fuzz: ## Run each fuzz target for FUZZTIME_LONG (1m)
	@$(call fuzz-all,$(FUZZTIME_LONG))

# -count=1: the tests drive a binary built from the root module, which go's test cache does
# not see.
.PHONY: test-peers
test-peers: peers/node_modules/.package-lock.json ## Run the tests against real MCP peers (TypeScript SDK, server-everything, mcp-go)
	cd peers && $(GO) test -race -count=1 -timeout 10m ./...

.PHONY: test-bench
test-bench: ## Run every scenario of the benchmarks once, for its errors
	cd bench && $(GO) test -count=1 -timeout 5m ./...

.PHONY: peers
peers: ## Install the npm peers at their locked versions
	cd peers && $(NPM) ci

# npm writes this file last, so it is there and newer than the lock file only after a
# complete install.
peers/node_modules/.package-lock.json: peers/package.json peers/package-lock.json
	cd peers && $(NPM) ci

##
## Checks
##

.PHONY: check
check: check-format check-modules check-vet check-lint ## Check format, modules, vet and lint, without tests

.PHONY: check-format
check-format: ## Check that gofmt has nothing to say
	@files=$$(gofmt -l $$(find . -name '*.go' -not -path '*/node_modules/*')); \
	if [ -n "$$files" ]; then echo "gofmt -w these:"; echo "$$files"; exit 1; fi

.PHONY: check-modules
check-modules: ## Check go.mod and go.sum of every module
	@for module in $(MODULES); do \
		echo "go mod tidy -diff, go mod verify ($$module)"; \
		(cd $$module && $(GO) mod tidy -diff && $(GO) mod verify); \
	done

.PHONY: check-vet
check-vet: ## Run go vet in every module
	@for module in $(MODULES); do echo "go vet ($$module)"; (cd $$module && $(GO) vet ./...); done

.PHONY: check-lint
check-lint: $(LINT) ## Run golangci-lint in every module
	@for module in $(MODULES); do echo "golangci-lint ($$module)"; (cd $$module && $(LINT) run ./...); done

# Built from source at a pinned version and kept: the first build takes some minutes.
$(LINT):
	GOBIN=$(CURDIR)/bin $(GO) install github.com/golangci/golangci-lint/v2/cmd/golangci-lint@$(LINT_VERSION)
	mv bin/golangci-lint $@

.PHONY: format
format: ## Run gofmt -w on everything
	gofmt -w $$(find . -name '*.go' -not -path '*/node_modules/*')

##
## The rest
##

.PHONY: build
build: ## Build bin/coatcheck
	$(GO) build -o bin/coatcheck ./cmd/coatcheck

.PHONY: bench
bench: ## Run the benchmarks and print the table of docs/benchmarks.md
	cd bench && $(GO) run .

.PHONY: clean
clean: ## Remove what was built and installed here
	rm -rf bin peers/node_modules
