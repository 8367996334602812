package gpu_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/gpu"
	"github.com/nearmetal/nearmetal/internal/gpu/passthrough"
	"github.com/nearmetal/nearmetal/internal/inventory"
)

// The slices of the hand-written answers in testdata: 3g.40gb, and two of 1g.10gb.
const (
	large     = "MIG-0b0f6a51-6a53-5d2c-8b1f-0000000000a0"
	small     = "MIG-0b0f6a51-6a53-5d2c-8b1f-0000000000a1"
	alsoSmall = "MIG-0b0f6a51-6a53-5d2c-8b1f-0000000000a2"
)

func testdata(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// divided are the answers of a node whose first GPU is in MIG mode.
func divided(t *testing.T) answers {
	t.Helper()
	return answers{
		"-q": testdata(t, "mig.xml"), "-L": testdata(t, "mig.txt"),
		"mig": "|   0  MIG 1g.10gb+me      20     0/1        9.50       No     16     1     0   |\n|   0  MIG 3g.40gb           9     0/2        39.50      No     60     3     0   |\n",
	}
}

// dividedMachine is the file system of a machine whose first GPU is in MIG mode, with the driver's capabilities and a CDI file.
func dividedMachine(t *testing.T, file string) string {
	t.Helper()
	root := machine(t)
	write := func(path, content string) {
		path = filepath.Join(root, path)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(content), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	write("etc/cdi/nvidia.yaml", file)
	for path, minor := range map[string]int{"gi2": 21, "gi2/ci0": 22, "gi9": 84, "gi9/ci0": 85, "gi10": 93, "gi10/ci0": 94} {
		write("proc/driver/nvidia/capabilities/gpu0/mig/"+path+"/access", fmt.Sprintf("DeviceFileMinor: %d\nDeviceFileMode: 292\nDeviceFileModify: 1\n", minor))
		node := filepath.Join(root, fmt.Sprint("dev/nvidia-caps/nvidia-cap", minor))
		if err := errors.Join(os.MkdirAll(filepath.Dir(node), 0o755), unix.Mknod(node, unix.S_IFCHR, int(unix.Mkdev(237, uint32(minor)))), os.Chmod(node, 0o444)); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

// devices lists what a node offers: ID and ways.
func devices(found gpu.Found) string {
	var all []string
	for _, d := range found.Devices() {
		for way := range d.Ways {
			all = append(all, d.ID+" "+way)
		}
	}
	return strings.Join(all, ", ")
}

func TestAGPUInMIGModeIsOfferedByItsSlices(t *testing.T) {
	root := dividedMachine(t, testdata(t, "mig-cdi.yaml"))
	found := gpu.New(gpu.Config{Root: root, Run: divided(t).run, Kinds: []gpu.Kind{{Name: "big", Of: "H100"}}}).Read(t.Context())
	if len(found.Problems) > 0 || len(found.GPUs) != 2 || len(found.GPUs[0].Problems) > 0 || !slices.Equal(found.GPUs[0].MIGProfiles, []string{"1g.10gb+me", "3g.40gb"}) {
		t.Fatalf("got %s", text(t, found))
	}
	want := []api.GPUSlice{
		{ID: large, Profile: "3g.40gb", MemoryBytes: 40448 << 20, CDI: "nvidia.com/gpu=0:0"},
		{ID: small, Profile: "1g.10gb", MemoryBytes: 9856 << 20, CDI: "nvidia.com/gpu=0:1"},
		{ID: alsoSmall, Profile: "1g.10gb", MemoryBytes: 9856 << 20, CDI: "nvidia.com/gpu=0:2"},
	}
	if text(t, found.GPUs[0].Slices) != text(t, want) {
		t.Errorf("got slices %s, want %s", text(t, found.GPUs[0].Slices), text(t, want))
	}
	if got, want := devices(found), second+" whole, "+small+" mig, "+alsoSmall+" mig, "+large+" mig"; got != want {
		t.Errorf("offered are %s, want %s: the GPU itself is not, and the smallest slice is the first", got, want)
	}
	d := found.Devices()[3]
	if d.Class != "gpu" || d.Parent != first || d.Profile != "3g.40gb" || d.MemoryBytes != 40448<<20 || d.Model != "NVIDIA H100 80GB HBM3" || !slices.Equal(d.Kinds, []string{"big"}) || text(t, d.Counters) != `{"slices":3}` ||
		text(t, d.Ways["mig"].Takes) != `{"slices":3}` {
		t.Errorf("got device %s", text(t, d))
	}
}

func TestAContainerGetsTheNodesOfItsSliceAndTheDriversLibraries(t *testing.T) {
	node := gpu.New(gpu.Config{Root: dividedMachine(t, testdata(t, "mig-cdi.yaml")), Run: divided(t).run})
	nodesOf := func(ids ...string) string {
		var claims []api.DeviceClaim
		for _, id := range ids {
			claims = append(claims, api.DeviceClaim{Class: "gpu", Device: id, Way: "mig", Parent: first})
		}
		edits, err := node.Edits(t.Context(), claims)
		if err != nil {
			return err.Error()
		}
		if edits.Libraries["libcuda.so.1"] == "" || slices.ContainsFunc(edits.Mounts, func(m gpu.Mount) bool { return !strings.HasPrefix(m.Path, gpu.Dir) }) || len(edits.Env) > 0 {
			t.Errorf("%v: got %s", ids, text(t, edits))
		}
		var nodes []string
		for _, d := range edits.Devices {
			nodes = append(nodes, fmt.Sprintf("%s:%s", strings.TrimPrefix(d.Path, "/dev/"), d.Access))
		}
		return strings.Join(nodes, " ")
	}
	const driver = " nvidiactl:rw nvidia-uvm:rw"
	for got, want := range map[string]string{
		nodesOf(large):            "nvidia0:rw nvidia-caps/nvidia-cap21:r nvidia-caps/nvidia-cap22:r" + driver,
		nodesOf(alsoSmall):        "nvidia0:rw nvidia-caps/nvidia-cap93:r nvidia-caps/nvidia-cap94:r" + driver,
		nodesOf(small, alsoSmall): "nvidia0:rw nvidia-caps/nvidia-cap84:r nvidia-caps/nvidia-cap85:r" + driver + " nvidia-caps/nvidia-cap93:r nvidia-caps/nvidia-cap94:r",
		nodesOf(first):            "GPU " + first + ": it is in MIG mode: members get its slices",
		nodesOf("MIG-x"):          "GPU MIG-x: the node does not have it any more",
	} {
		if got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

func TestASliceIsFoundByItsUUIDOrByItsNumbers(t *testing.T) {
	const numbers = "nvidia.com/gpu=0:1"
	for name, file := range map[string]string{
		numbers:                   testdata(t, "mig-cdi.yaml"),
		"nvidia.com/gpu=mig0:1":   strings.ReplaceAll(testdata(t, "mig-cdi.yaml"), `"0:`, `"mig0:`),
		"nvidia.com/gpu=" + small: strings.ReplaceAll(testdata(t, "mig-cdi.yaml"), `"0:1"`, small),
		"nvidia.com/gpu=" + small + "\n": strings.Replace(testdata(t, "mig-cdi.yaml"), "devices:\n", "devices:\n- name: "+small+
			"\n  containerEdits: {deviceNodes: [{path: /dev/nvidia0}, {path: /dev/nvidia-caps/nvidia-cap84}, {path: /dev/nvidia-caps/nvidia-cap85}]}\n", 1),
	} {
		found := gpu.New(gpu.Config{Root: dividedMachine(t, file), Run: divided(t).run}).Read(t.Context())
		if s := found.GPUs[0].Slices[1]; s.CDI != strings.TrimSpace(name) || len(s.Problems) > 0 || len(found.Devices()) != 4 {
			t.Errorf("by %s: got %s", name, text(t, found))
		}
	}
}

func TestASliceThatCanNotBeUsedIsShownWithTheReasonAndOfferedToNobody(t *testing.T) {
	whole := testdata(t, "mig-cdi.yaml")
	without := whole[:strings.Index(whole, "- name: \"0:1\"")] + whole[strings.Index(whole, "- name: \"0:2\""):]
	for name, c := range map[string]struct {
		file   string
		break_ func(root string) error
		want   string
	}{
		"not in the file":            {without, nil, "no CDI file of the node has it; run: nvidia-ctk cdi generate"},
		"without a file":             {"", nil, "no CDI file of the node has it"},
		"of an older layout":         {strings.ReplaceAll(whole, "nvidia-cap85", "nvidia-cap84"), nil, "CDI device nvidia.com/gpu=0:1 has the capabilities 84, and its instances have 84 and 85: the file is older than the layout"},
		"with another's nodes":       {strings.NewReplacer("nvidia-cap84", "nvidia-cap93", "nvidia-cap85", "nvidia-cap94").Replace(whole), nil, "has no device node that no other slice has"},
		"that may change the layout": {strings.ReplaceAll(whole, "nvidia-cap85", "nvidia-cap85\n    - path: /dev/nvidia-caps/nvidia-cap1"), nil, "has the capabilities 1 and 84 and 85"},
		"unknown to the driver": {whole, func(root string) error {
			return os.RemoveAll(filepath.Join(root, "proc/driver/nvidia/capabilities/gpu0/mig/gi9"))
		}, "its capabilities can't be read"},
		"whose node is not made": {whole, func(root string) error { return os.Remove(filepath.Join(root, "dev/nvidia-caps/nvidia-cap84")) }, "device node /dev/nvidia-caps/nvidia-cap84: no such file"},
		"closed to users":        {whole, func(root string) error { return os.Chmod(filepath.Join(root, "dev/nvidia-caps/nvidia-cap84"), 0o440) }, "has mode 0440, so that users of members can't use it"},
		"without a library":      {whole, func(root string) error { return os.Remove(filepath.Join(root, "usr/local/nvidia/lib64/libcuda.so.1")) }, "libcuda.so.1 is neither"},
	} {
		t.Run(name, func(t *testing.T) {
			root := dividedMachine(t, c.file)
			if c.break_ != nil {
				if err := c.break_(root); err != nil {
					t.Fatal(err)
				}
			}
			node := gpu.New(gpu.Config{Root: root, Run: divided(t).run})
			found := node.Read(t.Context())
			if s := found.GPUs[0].Slices[1]; s.ID != small || len(s.Problems) != 1 || !strings.Contains(s.Problems[0], c.want) {
				t.Errorf("got %s, want %q", text(t, s), c.want)
			}
			if strings.Contains(devices(found), small) {
				t.Error("it is offered")
			}
			if _, err := node.Edits(t.Context(), []api.DeviceClaim{{Class: "gpu", Device: small, Way: "mig"}}); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("a container gets it: %v", err)
			}
		})
	}
}

func TestNoSliceOfAGPUIsOfferedWhoseLayoutCanNotBeRead(t *testing.T) {
	root := dividedMachine(t, testdata(t, "mig-cdi.yaml"))
	for name, c := range map[string]struct {
		of, from, to string
		want         string
	}{
		"no slices":            {"-q", testdata(t, "mig.xml")[strings.Index(testdata(t, "mig.xml"), "<mig_devices>"):strings.Index(testdata(t, "mig.xml"), "</mig_devices>")], "<mig_devices>None", "it is in MIG mode and has no slices; make some by nvidia-smi mig -i 0000:3b:00.0 -cgi"},
		"one that -L lacks":    {"-L", "  MIG 1g.10gb     Device  2", "  Mig 1g.10gb     Device  2", "nvidia-smi -q lists a slice of it that nvidia-smi -L lacks"},
		"one that -q lacks":    {"-L", "  MIG 1g.10gb     Device  2", "  MIG 1g.10gb     Device  3", "nvidia-smi -L and nvidia-smi -q list different slices of it"},
		"two with one number":  {"-L", "  MIG 1g.10gb     Device  2", "  MIG 1g.10gb     Device  1: (UUID: MIG-0b0f6a51-6a53-5d2c-8b1f-0000000000a3)\n  MIG 1g.10gb     Device  2", "list different slices of it"},
		"one UUID for two":     {"-L", "a2)", "a1)", "lists its slice 2 with the profile \"1g.10gb\" and the UUID \"" + small + "\", which can't be used"},
		"a broken UUID":        {"-L", alsoSmall, "MIG-../../etc", "which can't be used"},
		"a broken profile":     {"-L", "MIG 1g.10gb     Device  2", "MIG 1g.10gb;reboot     Device  2", "which can't be used"},
		"a number twice":       {"-q", "<index>2", "<index>1", "lists its slice 1 twice"},
		"no number":            {"-q", "<gpu_instance_id>9", "<gpu_instance_id>N/A", `lists a slice of it with the number "N/A"`},
		"a GPU with a problem": {"-q", "<gpu_recovery_action>None", "<gpu_recovery_action>GPU Reset", `asks for "GPU Reset"`},
	} {
		a := divided(t)
		if !strings.Contains(a[c.of].(string), c.from) {
			t.Fatalf("%s: %q is not in the answer", name, c.from)
		}
		a[c.of] = strings.Replace(a[c.of].(string), c.from, c.to, 1)
		found := gpu.New(gpu.Config{Root: root, Run: a.run, Remote: gpu.Remote{GPUs: true}}).Read(t.Context())
		if problems := strings.Join(found.GPUs[0].Problems, "; "); !strings.Contains(problems, c.want) {
			t.Errorf("%s: got %q, want %q", name, problems, c.want)
		}
		if got := devices(found); got != second+" whole" {
			t.Errorf("%s: offered are %s", name, got)
		}
	}
	a := divided(t)
	a["-L"] = errors.New("nvidia-smi: no answer")
	if found := gpu.New(gpu.Config{Root: root, Run: a.run}).Read(t.Context()); devices(found) != second+" whole" || len(found.Problems) != 1 {
		t.Errorf("without an answer: %s", text(t, found))
	}
}

func TestSlicesOfOlderDriversAndOfComputeInstancesAreKnown(t *testing.T) {
	old := "MIG-" + first + "/10/0"
	a := divided(t)
	a["-L"] = strings.Replace(strings.Replace(a["-L"].(string), alsoSmall, old, 1), "MIG 3g.40gb     Device", "MIG 1c.3g.40gb  Device", 1)
	found := gpu.New(gpu.Config{Root: dividedMachine(t, testdata(t, "mig-cdi.yaml")), Run: a.run}).Read(t.Context())
	counters := map[string]string{}
	for _, d := range found.Devices() {
		counters[d.ID+" "+d.Profile] = text(t, d.Counters)
	}
	if counters[old+" 1g.10gb"] != `{"slices":1}` || counters[large+" 1c.3g.40gb"] != `{"slices":1}` {
		t.Errorf("got %v, %s", counters, text(t, found))
	}
}

func TestAGPUInMIGModeGoesToNoMachineAndToNoServer(t *testing.T) {
	m := &machines{cards: []passthrough.Card{fit("0000:3b:00.0"), fit("0000:86:00.0")}}
	programs := t.TempDir()
	if err := os.WriteFile(filepath.Join(programs, gpu.ServerProgram), []byte("\x7fELF"), 0o755); err != nil {
		t.Fatal(err)
	}
	found := gpu.New(gpu.Config{
		Root: dividedMachine(t, testdata(t, "mig-cdi.yaml")), Run: divided(t).run, Passthrough: m, PassthroughGPUs: []string{gpu.PassthroughAll}, Remote: gpu.Remote{GPUs: true, Programs: programs},
	}).Read(t.Context())
	if g := found.GPUs[0]; g.ID != first || g.Remote || g.Passthrough == nil || g.Passthrough.Offered || !strings.Contains(g.Passthrough.Problem, "in MIG mode") {
		t.Errorf("got %s", text(t, g))
	}
	if g := found.GPUs[1]; !g.Remote || !g.Passthrough.Offered {
		t.Errorf("got %s", text(t, g))
	}
	for _, d := range found.Devices() {
		if d.ID == first {
			t.Errorf("it is offered: %s", text(t, d))
		}
	}
}

func TestSlicesGoWithTheirGPU(t *testing.T) {
	root := dividedMachine(t, testdata(t, "mig-cdi.yaml"))
	for name, c := range map[string]struct {
		cfg  gpu.Config
		want string
	}{
		"kept by its operator":   {gpu.Config{Allow: []string{second}}, second + " whole"},
		"of another node":        {gpu.Config{Part: inventory.Part{N: 2, Of: 2}}, second + " whole"},
		"of the node's own part": {gpu.Config{Part: inventory.Part{N: 1, Of: 2}}, small + " mig, " + alsoSmall + " mig, " + large + " mig"},
	} {
		c.cfg.Root, c.cfg.Run = root, divided(t).run
		node := gpu.New(c.cfg)
		if got := devices(node.Read(t.Context())); got != c.want {
			t.Errorf("%s: offered are %s, want %s", name, got, c.want)
		}
		if _, err := node.Edits(t.Context(), []api.DeviceClaim{{Class: "gpu", Device: small}}); (err == nil) != strings.Contains(c.want, small) {
			t.Errorf("%s: a container gets a slice: %v", name, err)
		}
	}
}

// An agent looks once in a minute, and operators may destroy a slice between that and a member's start.
func TestASliceThatIsDestroyedBeforeAMemberStartsIsNotGivenToIt(t *testing.T) {
	for name, file := range map[string]string{
		"by the driver's own": testdata(t, "mig-cdi.yaml"), "by the file alone": testdata(t, "mig-cdi.yaml")[:strings.Index(testdata(t, "mig-cdi.yaml"), "containerEdits:\n  env")],
	} {
		root := dividedMachine(t, file)
		node := gpu.New(gpu.Config{Root: root, Run: divided(t).run})
		claims := []api.DeviceClaim{{Class: "gpu", Device: small, Way: "mig", Parent: first}}
		if _, err := node.Edits(t.Context(), claims); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if err := os.RemoveAll(filepath.Join(root, "proc/driver/nvidia/capabilities/gpu0/mig/gi9")); err != nil {
			t.Fatal(err)
		}
		if _, err := node.Edits(t.Context(), claims); err == nil || !strings.Contains(err.Error(), "its capabilities can't be read") {
			t.Errorf("%s: a member gets it: %v", name, err)
		}
	}
}

// Slices come and go while the agent runs.
func TestASliceThatIsDestroyedIsNotOfferedAnyMore(t *testing.T) {
	a := divided(t)
	node := gpu.New(gpu.Config{Root: dividedMachine(t, testdata(t, "mig-cdi.yaml")), Every: 1, Run: func(ctx context.Context, env []string, program string, args ...string) ([]byte, error) {
		return a.run(ctx, env, program, args...)
	}})
	node.Read(t.Context())
	xml := a["-q"].(string)
	from, to := strings.LastIndex(xml[:strings.Index(xml, "<index>2")], "<mig_device>"), strings.Index(xml, "</mig_devices>")
	a["-q"] = xml[:from] + xml[to:]
	a["-L"] = strings.Replace(a["-L"].(string), "  MIG 1g.10gb     Device  2: (UUID: "+alsoSmall+")\n", "", 1)
	if got := devices(node.Read(t.Context())); strings.Contains(got, alsoSmall) || !strings.Contains(got, small) {
		t.Errorf("offered are %s", got)
	}
	if _, err := node.Edits(t.Context(), []api.DeviceClaim{{Class: "gpu", Device: alsoSmall}}); err == nil || !strings.Contains(err.Error(), "the node does not have it any more") {
		t.Errorf("a container gets it: %v", err)
	}
}
