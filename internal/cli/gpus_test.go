package cli

import (
	"bytes"
	"strings"
	"testing"

	"github.com/nearmetal/nearmetal/api"
)

func TestGPUsAreShownWithWhyTheyAreNotGivenToMembers(t *testing.T) {
	var out bytes.Buffer
	new(app).printGPUs(&out, api.Node{})
	if out.Len() > 0 {
		t.Errorf("of a node without GPUs: %s", &out)
	}
	new(app).printGPUs(&out, api.Node{Agent: &api.AgentPart{
		GPUs: []api.NodeGPU{
			{ID: "GPU-a", Model: "NVIDIA H200", Kinds: []string{"big", "lab"}, MemoryBytes: 140 << 30, PCI: "0000:3b:00.0", NUMANode: 1, Driver: "580.95.05", CUDA: "13.0", ComputeCapability: "9.0", MIG: "enabled", MIGProfiles: []string{"1g.18gb", "7g.141gb"}, NVLinkPeers: []string{"GPU-b"}, Remote: true, Passthrough: &api.GPUPassthrough{Offered: true, IOMMUGroup: "17", Functions: []string{"0000:3b:00.1"}, Reset: "flr"}, Load: &api.GPULoad{Busy: 0.25}},
			{ID: "GPU-b", NUMANode: -1, Problems: []string{"it has fallen off its bus"}},
			{ID: "GPU-c", NUMANode: -1, Passthrough: &api.GPUPassthrough{Problem: "the node has no IOMMU"}},
		},
		GPUProblems: []string{"nvidia-smi did not answer within 20s"},
	}})
	lines := strings.Split(out.String(), "\n")
	for i, want := range []string{
		"", "GPU MODEL MEMORY PCI NUMA DRIVER CUDA COMPUTE MIG NVLINK PEERS REMOTE PASSTHROUGH BUSY PROBLEMS",
		"GPU-a NVIDIA H200 (big, lab) 140GiB 0000:3b:00.0 1 580.95.05 13.0 9.0 enabled (1g.18gb 7g.141gb) 1 yes yes (group 17, reset by flr, with 0000:3b:00.1) 25% -",
		"GPU-b - - - - - - - - - no - - it has fallen off its bus", "GPU-c - - - - - - - - - no no: the node has no IOMMU - -", "GPUs: nvidia-smi did not answer within 20s", "",
	} {
		if got := strings.Join(strings.Fields(lines[i]), " "); got != want {
			t.Errorf("line %d: got %q, want %q", i, got, want)
		}
	}
}

func TestANodeShowsWhoHoldsWhichPartOfItsGPUs(t *testing.T) {
	var out strings.Builder
	held := api.MemberDevice{Class: "gpu", Node: "n1", Device: "GPU-a", Way: "remote", Memory: 8 << 30, Why: "another node", Cost: 1.5, Observed: 1.25, Service: &api.GPUService{Calls: 9, Waits: 4, BusySeconds: 2, WaitSeconds: 25e-6}}
	printGPUUses(&out, []api.DeviceUse{{MemberDevice: held, Member: "c1/c1-0"}, {MemberDevice: api.MemberDevice{Class: "gpu", Device: "GPU-b", Way: "whole"}}})
	if got, want := strings.Join(strings.Fields(out.String()), " "), "GPU HELD MEMBER CALLS WAITS BUSY WAIT EXPECTED OBSERVED REASON GPU-a 8GiB remote c1/c1-0 9 4 2s 25.0us 1.50 1.25 another node GPU-b whole of another project - - - - - - -"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestTheGPUsOfAGroupAreShown(t *testing.T) {
	for want, devices := range map[string][]api.DeviceRequest{
		"":                   {{Class: "nic", Way: "vf", Count: 1}},
		"2":                  {{Class: "gpu", Way: "whole", Count: 2}},
		"1 any of 8GiB":      {{Class: "gpu", Way: "any", Count: 1, Remote: true, Memory: 8 << 30}},
		"3":                  {{Class: "gpu", Way: "passthrough", Count: 3}},
		"2 mig 1g.10gb":      {{Class: "gpu", Way: "mig", Count: 2, Profile: "1g.10gb"}},
		"1 H100 mig of 9GiB": {{Class: "gpu", Way: "mig", Count: 1, Model: "H100", Memory: 9 << 30}},
		"1 H200":             {{Class: "gpu", Way: "whole", Count: 1, Model: "H200"}},
		"1 of 80GiB, 3 remote of 8GiB, 1 (1g-18gb)": {{Class: "gpu", Way: "whole", Count: 1, Memory: 80 << 30}, {Class: "gpu", Way: "remote", Count: 3, Remote: true, Memory: 8 << 30}, {Class: "gpu", Way: "1g-18gb", Count: 1}},
	} {
		if got := groupGPUs(api.Group{Devices: devices}); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

func TestTheSlicesOfANodesGPUsAreShown(t *testing.T) {
	var out strings.Builder
	printSlices(&out, []api.NodeGPU{{ID: "GPU-a"}})
	if out.Len() > 0 {
		t.Errorf("of a GPU without slices: %s", &out)
	}
	printSlices(&out, []api.NodeGPU{
		{ID: "GPU-a", Slices: []api.GPUSlice{{ID: "MIG-a", Profile: "1g.10gb", MemoryBytes: 9856 << 20, CDI: "nvidia.com/gpu=0:0"}, {ID: "MIG-b", Profile: "3g.40gb", Problems: []string{"no CDI file of the node has it"}}}},
		{ID: "GPU-b", Problems: []string{"it is hot"}, Slices: []api.GPUSlice{{ID: "MIG-c", Profile: "7g.80gb"}}},
	})
	want := "SLICE PROFILE MEMORY OF GPU CDI PROBLEMS MIG-a 1g.10gb 9856MiB GPU-a nvidia.com/gpu=0:0 - MIG-b 3g.40gb - GPU-a - no CDI file of the node has it MIG-c 7g.80gb - GPU-b - its GPU has a problem"
	if got := strings.Join(strings.Fields(out.String()), " "); got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestTheGPUsOfTheSiteAreListedWithTheirHoldersAndWhatIsGone(t *testing.T) {
	use := func(id, way, profile, member string, gone bool) api.DeviceUse {
		return api.DeviceUse{MemberDevice: api.MemberDevice{Class: "gpu", Node: "n1", Device: id, Way: way, Profile: profile, Gone: gone}, Member: member}
	}
	got := gpusOfSite([]api.Node{
		{Name: "n0"},
		{
			Name: "n1", Agent: &api.AgentPart{GPUs: []api.NodeGPU{{ID: "GPU-a", Model: "H100", Slices: []api.GPUSlice{{ID: "MIG-a", Profile: "1g.10gb"}}}, {ID: "GPU-b", Problems: []string{"it is hot"}}}},
			GPUUses: []api.DeviceUse{use("MIG-a", "mig", "1g.10gb", "c1/c1-0", false), use("MIG-z", "mig", "3g.40gb", "", true)},
		},
	})
	var lines []string
	for _, g := range got {
		lines = append(lines, strings.Join([]string{g.ID, g.Parent, g.Profile, g.Model, holdersText(g.Uses), strings.Join(g.Problems, ";")}, "|"))
	}
	want := "GPU-a|||H100||\nMIG-a|GPU-a|1g.10gb|H100|c1/c1-0 (slice 1g.10gb)|\nGPU-b|||||it is hot\nMIG-z||3g.40gb||of another project (slice 3g.40gb, gone)|its node does not have it any more"
	if all := strings.Join(lines, "\n"); all != want || !got[3].Gone {
		t.Errorf("got\n%s\nwant\n%s", all, want)
	}
}
