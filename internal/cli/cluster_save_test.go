package cli_test

import (
	"testing"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/cli"
)

func TestFilesOfAMachineAreSavedAndTheirBuildIsAwaited(t *testing.T) {
	f := newFake(t)
	pending := api.Build{ID: "b1", Environment: "solver", Project: "default", Phase: api.BuildPending}
	ended := pending
	ended.Phase, ended.Digest, ended.Percent = api.BuildSucceeded, "sha256:0123", 100
	f.fixed("POST /v1/clusters/m1/save-files", pending)
	f.inTurn("GET /v1/builds/b1", pending, ended)
	has(t, f.shell().run(t, "cluster", "save", "m1", "--files", "solver", "--member", "m1-1", "--keep-key", "/a", "--keep-key", "/b,c"), 0, "environment solver is built: sha256:0123")
	f.expect(`POST /v1/clusters/m1/save-files {"environment":"solver","member":"m1-1","keep_keys":["/a","/b,c"]}`, "GET /v1/builds/b1", "GET /v1/builds/b1")
	f = newFake(t)
	f.fixed("POST /v1/clusters/m1/save-files", pending)
	has(t, f.shell().run(t, "cluster", "save", "m1", "--files", "solver", "--no-wait"), 0, "b1\n")
	f.expect(`POST /v1/clusters/m1/save-files {"environment":"solver"}`)
	f = newFake(t)
	for words, args := range map[string][]string{
		"--files saves one cluster, and 2 are named":      {"m1", "m2", "--files", "e"},
		"the name of the new environment is empty":        {"m1", "--files", ""},
		"--memory conflicts with --files":                 {"m1", "--files", "e", "--memory"},
		"--timeout does not apply to --files":             {"m1", "--files", "e", "--timeout", "1m"},
		"--member, --keep-key and --no-home need --files": {"m1", "--keep-key", "/a"},
	} {
		has(t, f.shell().run(t, append([]string{"cluster", "save"}, args...)...), cli.ExitUsage, words)
		f.expect()
	}
}
