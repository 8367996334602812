package cli_test

import (
	"net/http"
	"testing"

	"github.com/nearmetal/nearmetal/api"
)

func TestAWaitForANodeGoesOnOverARestartOfTheServer(t *testing.T) {
	f := newFake(t)
	booting, ready := asked(booted(machineNode("n1", api.MachineBooting), 5), 3, 3), asked(booted(machineNode("n1", api.MachineReady), 8), 3, 3)
	f.fixed("POST /v1/power", api.List[api.Node]{Items: []api.Node{booting}})
	n := 0
	f.on("GET /v1/nodes/n1", func(*http.Request, string) any {
		n++
		switch {
		case n < 3:
			return booting
		case n < 6:
			panic(http.ErrAbortHandler) // the server is away
		case n == 6:
			return &api.Problem{Status: http.StatusServiceUnavailable, Code: "unavailable", Detail: "starting"}
		}
		return ready
	})
	has(t, f.shell().run(t, "node", "power", "on", "n1", "--env", "debian-mpi", "--wait"), 0, "node n1 is ready with debian-mpi")
}
