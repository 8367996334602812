package cli_test

import (
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/cli"
)

// cleanedNode is a machine whose cleaning of a number was asked for, and taken up or not.
func cleanedNode(phase api.MachinePhase, number, done int64) api.Node {
	n := machineNode("n1", phase)
	n.Machine.Clean, n.Machine.Record.DoneClean = api.CleanRequest{Number: number}, done
	return n
}

func TestNothingIsErasedWithoutAConfirmation(t *testing.T) {
	f := newFake(t)
	known := machineNode("n1", api.MachineOff)
	known.Machine.Hardware = &api.Hardware{Disks: []api.Disk{{Name: "sda", SizeBytes: 1 << 40}}}
	f.fixed("GET /v1/nodes/n1", known)
	has(t, f.shell().run(t, "node", "clean", "n1"), cli.ExitUsage, "nothing was erased", "--yes", "--dry-run")
	has(t, f.shell().run(t, "node", "clean"), cli.ExitUsage, "nodes to clean")
	f.expect("GET /v1/nodes/n1")
	f.fixed("POST /v1/clean", api.List[api.Node]{Items: []api.Node{cleanedNode(api.MachineOff, 1, 0)}})
	has(t, f.shell().run(t, "node", "clean", "n1", "n1", "--dry-run"), 0, "node n1 is to be cleaned (dry run: nothing is erased)")
	f.expect("GET /v1/nodes/n1", `POST /v1/clean {"nodes":["n1"],"dry_run":true}`)
	has(t, f.shell().run(t, "node", "clean", "n1", "--yes"), 0, "node n1 is to be cleaned; see 'nearmetal node show n1'")
	f.expect("GET /v1/nodes/n1", `POST /v1/clean {"nodes":["n1"],"dry_run":true}`, `POST /v1/clean {"nodes":["n1"]}`)
}

func TestACleaningIsWaitedForAndShown(t *testing.T) {
	steps := []api.CleanStep{
		{Kind: api.CleanDisk, Target: "sda", State: api.CleanDone, Method: "discard", Tried: []string{"ATA secure erase is left out: frozen"}, Seconds: 12, Bytes: 10, TotalBytes: 10, Verified: "all of it was read back"},
		{Kind: api.CleanTPM, Target: "TPM", State: api.CleanSkipped, Message: "the machine has none"},
	}
	before, during, after := cleanedNode(api.MachineOff, 2, 1), cleanedNode(api.MachineCleaning, 2, 2), cleanedNode(api.MachineOff, 2, 2)
	during.Machine.Record.Cleaning = &api.MachineClean{Bytes: 1 << 30, TotalBytes: 4 << 30}
	after.Machine.Record.Clean = &api.MachineClean{Generation: 7, At: t0, Done: true, Steps: steps}
	f := newFake(t)
	f.fixed("POST /v1/clean", api.List[api.Node]{Items: []api.Node{before}})
	f.inTurn("GET /v1/nodes/n1", before, during, after)
	has(t, squeezed(f.shell().run(t, "node", "clean", "n1", "--yes", "--wait")), 0, "node n1 is clean\n",
		"disk sda done discard 12.0 100% all of it was read back before: ATA secure erase is left out: frozen", "tpm TPM skipped - - - - the machine has none")
	has(t, squeezed(f.shell().run(t, "node", "show", "n1")), 0, "Cleaning: clean, ", "in boot 7", "disk sda done")

	f = newFake(t)
	f.fixed("GET /v1/nodes/n1", during)
	has(t, squeezed(f.shell().run(t, "node", "show", "n1")), 0, "Cleaning: goes on, 1GiB of 4GiB")

	for name, c := range map[string]struct {
		change func(*api.MachineRecord)
		words  string
	}{
		"it has failed":         {func(r *api.MachineRecord) { r.Phase, r.Message = api.MachineFailed, "disk sda is not clean" }, "disk sda is not clean"},
		"it was interrupted":    {func(r *api.MachineRecord) { r.Cleaning = &api.MachineClean{} }, "interrupted"},
		"it can't boot":         {func(r *api.MachineRecord) { r.Message = `can't boot "inspect"` }, "can't boot"},
		"it was only a dry run": {func(r *api.MachineRecord) { r.Cleaning = &api.MachineClean{DryRun: true, Done: true} }, "was not cleaned"},
	} {
		t.Run(name, func(t *testing.T) {
			ended := cleanedNode(api.MachineOff, 2, 2)
			c.change(&ended.Machine.Record)
			f := newFake(t)
			f.fixed("POST /v1/clean", api.List[api.Node]{Items: []api.Node{before}})
			f.fixed("GET /v1/nodes/n1", ended)
			has(t, f.shell().run(t, "node", "clean", "n1", "--yes", "--wait"), cli.ExitFailed, c.words)
		})
	}
}

func TestAMachineIsQuarantinedWithAReasonAndReleased(t *testing.T) {
	f := newFake(t)
	has(t, f.shell().run(t, "node", "quarantine", "n1"), cli.ExitUsage, "--reason")
	held := machineNode("n1", api.MachineOff)
	held.Machine.Hold, held.Machine.Record.DoneHold = api.HoldRequest{Number: 1, Action: api.HoldQuarantine}, 1
	held.Machine.Record.Quarantine = &api.MachineQuarantine{Reason: "noise", By: "ann", Since: t0.Add(-time.Hour)}
	f.fixed("POST /v1/nodes/n1/hold", held)
	f.fixed("GET /v1/nodes/n1", held)
	has(t, f.shell().run(t, "node", "quarantine", "n1", "--reason", "noise"), 0, "node n1 is in quarantine\n")
	has(t, squeezed(f.shell().run(t, "node", "show", "n1")), 0, "Quarantine: noise (by ann, ")
	held.Machine.Record.Tenant = &api.MachineTenant{Cluster: "m1"}
	has(t, squeezed(f.shell().run(t, "node", "show", "n1")), 0, "Given to: a member of cluster m1, and not cleaned since")
	released := machineNode("n1", api.MachineOff)
	released.Machine.Hold, released.Machine.Record.DoneHold = api.HoldRequest{Number: 2, Action: api.HoldRelease}, 2
	f = newFake(t)
	f.fixed("POST /v1/nodes/n1/hold", released)
	f.fixed("GET /v1/nodes/n1", released)
	has(t, f.shell().run(t, "node", "release", "n1"), 0, "node n1 is released\n")
}
