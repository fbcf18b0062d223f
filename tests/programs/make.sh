#!/bin/bash
# A C project of 50 files, built by make: only changed files are rebuilt. A cache of objects works with
# temporary names, links and renames, like ccache.
#
#   tests/programs/make.sh DIRECTORY SCRATCH
set -euo pipefail
cd "$1"
for program in make cc; do command -v $program >/dev/null || { echo "$program" && exit 77; }; done
files=50
mkdir src cache
for n in $(seq $files); do
    printf 'int f%d(void);\n' "$n" >"src/f$n.h"
    printf '#include "f%d.h"\nint f%d(void) { return %d; }\n' "$n" "$n" "$n" >"src/f$n.c"
done
{
    for n in $(seq $files); do printf '#include "f%d.h"\n' "$n"; done
    printf '#include <stdio.h>\nint main(void) { printf("%%d\\n", 0'
    for n in $(seq $files); do printf ' + f%d()' "$n"; done
    printf '); return 0; }\n'
} >src/main.c
cat >compile <<'END'
#!/bin/sh
# compile SOURCE OBJECT: takes the object from the cache, or compiles it and adds it to the cache.
set -e
key=cache/$(cat "$1" src/*.h | cksum | tr ' ' '-')
if [ -e "$key" ]; then
    echo hit >>hits
    ln -f "$key" "$2.$$" && touch "$2.$$" && mv -f "$2.$$" "$2"
else
    cc -O0 -Isrc -c -o "$2.$$" "$1" && mv -f "$2.$$" "$2"
    cp "$2" "$key.$$" && mv "$key.$$" "$key"
fi
END
chmod +x compile
cat >Makefile <<'END'
objects := $(patsubst src/%.c,build/%.o,$(wildcard src/*.c))
program: $(objects)
	cc -o $@.new $(objects)
	mv $@.new $@
build/%.o: src/%.c
	@mkdir -p build
	./compile $< $@
	@echo $< >>built
clean:
	rm -rf build program
END
: >hits
make --silent -j4
test "$(./program)" = $((files * (files + 1) / 2))
test "$(wc -l <built)" = $((files + 1))
test ! -s hits

# Without a change nothing is built; with one changed file, one.
make --silent -j4
test "$(wc -l <built)" = $((files + 1))
sleep 0.02
printf '#include "f7.h"\nint f7(void) { return 1007; }\n' >src/f7.new
mv src/f7.new src/f7.c
make --silent -j4
test "$(wc -l <built)" = $((files + 2))
test "$(./program)" = $((files * (files + 1) / 2 + 1000))
touch src/f9.c
make --silent -j4
test "$(wc -l <built)" = $((files + 3))

# Build everything again, from the cache.
make --silent clean
: >hits
make --silent -j4
test "$(wc -l <hits)" = $((files + 1))
test "$(./program)" = $((files * (files + 1) / 2 + 1000))
