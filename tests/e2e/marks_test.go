package e2e

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// unreached are the marks that neither the life of a cluster nor that of a site comes by, with the reason. A mark that is
// listed and reached all the same, or not in the source, fails the test.
var unreached = map[string]string{
	"agent.after-departure":       noVirtualMachines,
	"agent.after-send":            noVirtualMachines,
	"agent.before-laying-down":    noSnapshots,
	"agent.before-snapshot":       noSnapshots,
	"agent.before-verify":         noSnapshots,
	"agent.before-reboot":         "only virtual machines reboot; TestARebootedMemberIsTheSameOneAndBootsOnce restarts the agent",
	"agent.before-sharing":        noSharing,
	"agent.after-sharing":         noSharing,
	"agent.before-remount":        noAttachments,
	"agent.before-condition":      noConditions,
	"container.after-detour":      noConditions,
	"container.before-remount":    noAttachments,
	"container.after-mount":       noAttachments,
	"agent.before-resize":         "only virtual machines are resized; TestAMemberHoldsItsNewSizeFromTheDecisionAndHasItOnceItReboots restarts the agent",
	"node.after-clear-limit":      noRates,
	"node.after-delete-class":     noRates,
	"node.after-ifb":              noRates,
	"node.after-limit":            noRates,
	"node.after-parent-rate":      noRates,
	"node.after-tap":              noVirtualMachines,
	"passthrough.after-owner":     noVirtualMachines,
	"passthrough.after-take":      noVirtualMachines,
	"passthrough.after-give":      noVirtualMachines,
	"vm.after-gpus":               noVirtualMachines,
	"state.after-build":           noMachines,
	"state.after-finish-build":    noMachines,
	"state.after-machine":         noMachines,
	"state.after-machine-record":  noMachines,
	"state.after-power-request":   noMachines,
	"state.after-renew-node":      "agents of dev ask for a certificate whenever they start; TestAServerKilledAmidARenewalLocksNobodyOut dies here",
	"state.after-take-candidate":  noMachines,
	"state.before-forget-machine": noMachines,
	"state.before-machine-record": noMachines,
	"vm.before-export":            noVirtualMachines,
	"vm.before-imported":          noVirtualMachines,
	"vm.after-arrival":            noVirtualMachines,
	"vm.after-attach":             noVirtualMachines,
	"vm.after-create":             noVirtualMachines,
	"vm.after-detach":             noVirtualMachines,
	"vm.after-end":                noVirtualMachines,
	"vm.after-foreign":            noVirtualMachines,
	"vm.after-handed":             noVirtualMachines,
	"vm.after-home":               noVirtualMachines,
	"vm.after-leave":              noVirtualMachines,
	"vm.after-link":               noVirtualMachines,
	"vm.after-mount":              noVirtualMachines,
	"vm.after-plug":               noVirtualMachines,
	"vm.after-running":            noVirtualMachines,
	"vm.after-saved":              noVirtualMachines,
	"vm.after-seed":               noVirtualMachines,
	"vm.after-setup":              noVirtualMachines,
	"vm.after-shutdown":           noVirtualMachines,
	"vm.after-snapshot":           noVirtualMachines,
	"vm.after-snapshot-state":     noVirtualMachines,
	"vm.after-state":              noVirtualMachines,
	"vm.after-widen":              noVirtualMachines,
	"vm.after-write":              noVirtualMachines,
	"vm.before-go":                noVirtualMachines,
	"vm.before-origin":            noVirtualMachines,
	"vm.before-remount":           noVirtualMachines,
}

// noVirtualMachines: agents die at these marks in the tests of internal/driver/vm and of internal/fabric/node.
const noVirtualMachines = "virtual machines are no part of a cluster's life on the container stack"

// noAttachments: members of this cluster are on several nodes, which one volume is not on.
const noAttachments = "volumes of this cluster do not change; TestAnAgentMayDieAmidARemount and TestVolumesOfARunningClusterChange end the agent"

// noConditions: the network of this cluster has no condition.
const noConditions = "the network of this cluster has no condition; TestAClustersNetworkHasAConditionAsLongAsItsAgentsRun kills the agents"

// noSharing: this kernel need not have NFS.
const noSharing = "volumes of this cluster do not cross between nodes; agents die here in TestAVolumeReachesOtherNodesAndIsTakenFromOneThatIsLost (make test-volume-guest)"

// noRates: the fabric dies at these marks in a test of internal/fabric/node.
const noRates = "ports of this cluster have no rates; TestAKillAtAnyFailpointIsMendedByTheNextProcess dies here"

// noSnapshots: an agent's end is tested without a mark.
const noSnapshots = "only virtual machines have snapshots; TestAnAgentThatEndsAmidASnapshotOrItsRestoreCompletesIt ends the agent"

// noMachines: the tests here have neither machines to power nor environments to build.
const noMachines = "machines and builds are no part of a cluster's life on the container stack"

// marksInSource returns the names of all failpoints of the program, as its source has them: a new one is tested by itself.
func marksInSource(t *testing.T) []string {
	t.Helper()
	names := map[string]bool{}
	root := filepath.Join("..", "..", "internal")
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return err
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		ast.Inspect(file, func(n ast.Node) bool {
			if name, ok := markOf(n); ok {
				names[name] = true
			}
			return true
		})
		return nil
	})
	if err != nil {
		t.Fatalf("the source can't be read for its failpoints: %v", err)
	}
	if len(names) == 0 {
		t.Fatalf("no failpoint in %s", root)
	}
	for name := range unreached {
		if !names[name] {
			t.Errorf("%q is listed as unreached, but there is no such failpoint", name)
		}
	}
	return slices.Sorted(maps.Keys(names))
}

// markOf is the name in a call failpoint.Hit("NAME"). That it is a literal is checked by internal/archtest.
func markOf(n ast.Node) (string, bool) {
	call, ok := n.(*ast.CallExpr)
	if !ok || len(call.Args) != 1 {
		return "", false
	}
	selector, ok := call.Fun.(*ast.SelectorExpr)
	if !ok || selector.Sel.Name != "Hit" {
		return "", false
	}
	if pkg, ok := selector.X.(*ast.Ident); !ok || pkg.Name != "failpoint" {
		return "", false
	}
	literal, ok := call.Args[0].(*ast.BasicLit)
	if !ok {
		return "", false
	}
	name, err := strconv.Unquote(literal.Value)
	return name, err == nil
}

// armory is the folder in which a test arms one failpoint at a time (see package failpoint).
type armory struct {
	t   *testing.T
	dir string
}

func (a armory) environment() string { return "NEARMETAL_FAILPOINT_DIR=" + a.dir }

// arm makes the next process that comes by the mark die there.
func (a armory) arm(mark string) {
	a.t.Helper()
	if err := os.WriteFile(filepath.Join(a.dir, mark), nil, 0o600); err != nil {
		a.t.Fatal(err)
	}
}

// armed tells whether nobody has come by the mark since it was armed.
func (a armory) armed(mark string) bool {
	_, err := os.Lstat(filepath.Join(a.dir, mark))
	return err == nil
}

// disarm takes the mark back; if a process died there, it returns its ID.
func (a armory) disarm(mark string) (pid int, died bool) {
	a.t.Helper()
	file := filepath.Join(a.dir, mark)
	if os.Remove(file) == nil {
		return 0, false
	}
	hits, err := filepath.Glob(file + ".*")
	if err != nil || len(hits) != 1 {
		a.t.Fatalf("failpoint %s: want one process that died there, got %q (%v)", mark, hits, err)
	}
	pid, err = strconv.Atoi(strings.TrimPrefix(hits[0], file+"."))
	if err == nil {
		err = os.Remove(hits[0])
	}
	if err != nil {
		a.t.Fatal(err)
	}
	return pid, true
}
