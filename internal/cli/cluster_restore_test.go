package cli_test

import (
	"testing"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/cli"
)

func TestAClusterIsMadeOfSavedFilesAndTheHomeOfThen(t *testing.T) {
	saved := &api.SavedCluster{
		Cluster: "m1", Member: "m1-0", Home: "home-ann@solver",
		Groups: []api.Group{{Name: "m1", Size: 2, Shape: api.Shape{Cores: 1}, Stack: api.StackMetal, Environment: "solver"}, {Name: "c", Size: 1, Environment: "debian-mpi"}},
	}
	ready := api.Cluster{Name: "m2", Status: api.ClusterStatus{Phase: api.ClusterReady}}
	const groups = `"groups":[{"name":"m2","size":2,"cores":1,"stack":"metal","environment":"solver"},{"name":"c","size":1,"environment":"debian-mpi"}]`
	f := newFake(t)
	f.fixed("GET /v1/environments/solver", api.Environment{Name: "solver", Saved: saved})
	f.fixed("POST /v1/volumes", api.VolumeStatus{Name: "m2-home"})
	f.fixed("POST /v1/clusters", ready)
	f.fixed("GET /v1/clusters/m2", ready)
	has(t, f.shell().run(t, "cluster", "restore", "m2", "--files", "solver", "--no-wait"), 0, "m2", "ready")
	f.expect("GET /v1/environments/solver", `POST /v1/volumes {"name":"m2-home","from":"home-ann@solver"}`,
		`POST /v1/clusters {"name":"m2",`+groups+`,"volumes":[{"name":"m2-home","path":"/home"}]}`)
	f = newFake(t)
	f.fixed("GET /v1/environments/solver", api.Environment{Name: "solver", Saved: saved})
	f.fixed("POST /v1/clusters", ready)
	has(t, f.shell().run(t, "cluster", "restore", "m2", "--files", "solver", "--no-home", "--no-wait"), 0, "m2")
	f.expect("GET /v1/environments/solver", `POST /v1/clusters {"name":"m2",`+groups+`}`)

	f = newFake(t)
	f.fixed("GET /v1/environments/debian-mpi", api.Environment{Name: "debian-mpi"})
	has(t, f.shell().run(t, "cluster", "restore", "m2", "--files", "debian-mpi"), cli.ExitConflict, "was not made of a cluster's files", "nearmetal cluster create m2 --env debian-mpi")
	f.expect("GET /v1/environments/debian-mpi")
	f = newFake(t)
	for words, args := range map[string][]string{
		"--files creates one cluster, and 2 are named": {"m1", "m2", "--files", "e"},
		"the name of the environment is empty":         {"m1", "--files", ""},
		"--no-home needs --files":                      {"m1", "--no-home"},
	} {
		has(t, f.shell().run(t, append([]string{"cluster", "restore"}, args...)...), cli.ExitUsage, words)
		f.expect()
	}
}
