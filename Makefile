# Entry points. `make` alone lists the targets.

.PHONY: help demo deb static test test-long fmt lint deny clean

help:
	@echo 'make demo    build limen, mount a volume, and show that its ACLs are enforced'
	@echo 'make deb     build a Debian package below target/deb'
	@echo 'make static  build a limen that needs no shared library, with musl'
	@echo 'make test    every check: format, lints, layering, licences, tests, suites on a mounted volume (as root)'
	@echo 'make test-long  200 kills, a million differential steps, a long fsx run, databases and fio on a mount (as root, hours)'
	@echo 'make fmt     format the source'
	@echo 'make lint    format check, clippy and tidy'
	@echo 'make deny    licences, sources and advisories of the dependencies (cargo-deny, network)'
	@echo 'make clean   remove all build results and downloads'

demo:
	@scripts/install-deps.sh demo
	@echo 'Building limen; this takes some minutes the first time.'
	@cargo build --release --package cli
	@scripts/demo.sh

deb:
	@scripts/deb.sh

static:
	@scripts/static.sh

test:
	@scripts/install-deps.sh test
	@scripts/test.sh

test-long:
	@scripts/install-deps.sh test
	@scripts/test-long.sh

fmt:
	cargo fmt --all

lint:
	cargo fmt --all --check
	cargo clippy --workspace --all-targets -- -D warnings
	cargo xtask tidy

deny:
	@scripts/deny.sh

clean:
	cargo clean
