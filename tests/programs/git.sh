#!/bin/bash
# A repository with 300 files and 30 commits: commit, branch, merge, clone, gc, worktree; fsck after each
# stage.
#
#   tests/programs/git.sh DIRECTORY SCRATCH
set -euo pipefail
cd "$1"
command -v git >/dev/null || { echo "git" && exit 77; }
export HOME=$2 GIT_CONFIG_NOSYSTEM=1 GIT_AUTHOR_NAME=test GIT_AUTHOR_EMAIL=test@example.org
export GIT_COMMITTER_NAME=test GIT_COMMITTER_EMAIL=test@example.org

git init --quiet --initial-branch=main repository
cd repository
for directory in $(seq 10); do
    mkdir -p "src/$directory"
    for file in $(seq 30); do seq "$directory$file" "$((directory * 1000 + file))" >"src/$directory/$file.txt"; done
done
ln -s src/1/1.txt link
git add --all
git commit --quiet --message start
for commit in $(seq 30); do
    echo "$commit" >>"src/$((commit % 10 + 1))/$commit.txt"
    git mv "src/$((commit % 10 + 1))/$((commit % 25 + 1)).txt" "src/$((commit % 10 + 1))/moved-$commit"
    git commit --quiet --all --message "change $commit"
done
git checkout --quiet -b side HEAD~5
echo side >side
git add side
git commit --quiet --message side
git checkout --quiet main
git merge --quiet --no-edit side
git fsck --full --strict
test -z "$(git status --porcelain)"

git worktree add --quiet ../worktree HEAD~3
test -z "$(git -C ../worktree status --porcelain)"
git worktree remove ../worktree

head=$(git rev-parse HEAD)
git clone --quiet --no-local . ../clone
git clone --quiet . ../linked
git clone --quiet --no-local . "$2/elsewhere"
for clone in ../clone ../linked "$2/elsewhere"; do
    git -C "$clone" fsck --full --strict
    test "$(git -C "$clone" rev-parse HEAD)" = "$head"
done
diff -r --exclude=.git . "$2/elsewhere"

git gc --quiet --aggressive --prune=now
git repack -adfq
git fsck --full --strict
git stash --quiet 2>/dev/null || true
test -z "$(git status --porcelain)"
git -C ../clone pull --quiet
