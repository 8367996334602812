package manifest_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/nearmetal/nearmetal/internal/manifest"
)

// gpus reads a file, and returns what its only group asks for of devices.
func gpus(t *testing.T, file string) (string, error) {
	t.Helper()
	req, src, err := manifest.DecodeCluster([]byte("name: c\n"+file), manifest.YAML)
	if err != nil {
		return "", err
	}
	c, err := manifest.Normalize(req, src)
	if err != nil {
		return "", err
	}
	if g := c.Spec.Groups[0]; g.GPU != "" {
		t.Errorf("%s: what was asked for is stored twice: %q", file, g.GPU)
	}
	text, err := json.Marshal(c.Spec.Groups[0].Devices)
	return string(text), err
}

func TestGPUsAreStoredAmongTheDevicesOfAGroup(t *testing.T) {
	const one = `[{"class":"gpu","way":"whole","count":1}]`
	const machines = `[{"class":"gpu","way":"passthrough","count":1}]`
	for file, want := range map[string]string{
		"gpu: 1":                        one,
		"gpu: '1'":                      one,
		"gpu: 64":                       `[{"class":"gpu","way":"whole","count":64}]`,
		"gpu: 2:H200":                   `[{"class":"gpu","way":"whole","count":2,"model":"H200"}]`,
		"gpu: '1:RTX PRO 6000'":         `[{"class":"gpu","way":"whole","count":1,"model":"RTX PRO 6000"}]`,
		"gpu: '1:4090'":                 `[{"class":"gpu","way":"whole","count":1,"model":"4090"}]`,
		"gpu: 1:whole":                  one,
		"gpu: 1\nstack: vm":             machines,
		"gpu: 1:remote:8GiB\nstack: vm": `[{"class":"gpu","way":"remote","count":1,"remote":true,"memory":"8GiB"}]`,
		"groups: [{stack: vm, devices: [{class: gpu, way: remote, remote: true, memory: 1GiB}]}]": `[{"class":"gpu","way":"remote","count":1,"remote":true,"memory":"1GiB"}]`,
		"gpu: 1:any:8GiB\nstack: vm":                                       `[{"class":"gpu","way":"any","count":1,"remote":true,"memory":"8GiB"}]`,
		"groups: [{stack: vm, devices: [{class: gpu, way: whole}]}]":       machines,
		"groups: [{stack: vm, devices: [{class: gpu, way: passthrough}]}]": machines,
		"gpu: 1:remote:8GiB":                                               `[{"class":"gpu","way":"remote","count":1,"remote":true,"memory":"8GiB"}]`,
		"gpu: 2:remote:512MiB:H200":                                        `[{"class":"gpu","way":"remote","count":2,"remote":true,"model":"H200","memory":"512MiB"}]`,
		"gpu: 1:any":                                                       `[{"class":"gpu","way":"any","count":1,"remote":true,"memory":"1GiB"}]`,
		"gpu: 1:any:8GiB":                                                  `[{"class":"gpu","way":"any","count":1,"remote":true,"memory":"8GiB"}]`,
		"gpu: 2:ANY:8GiB:H200":                                             `[{"class":"gpu","way":"any","count":2,"remote":true,"model":"H200","memory":"8GiB"}]`,
		"gpu: 1:mig":                                                       `[{"class":"gpu","way":"mig","count":1}]`,
		"gpu: 2:MIG:1G.10GB":                                               `[{"class":"gpu","way":"mig","count":2,"profile":"1g.10gb"}]`,
		"gpu: 1:mig:1c.3g.40gb:H100":                                       `[{"class":"gpu","way":"mig","count":1,"model":"H100","profile":"1c.3g.40gb"}]`,
		"gpu: 1:mig:1g.18gb+me":                                            `[{"class":"gpu","way":"mig","count":1,"profile":"1g.18gb+me"}]`,
		"gpu: 1:mig:10GiB":                                                 `[{"class":"gpu","way":"mig","count":1,"memory":"10GiB"}]`,
		"gpu: 1:mig:10GiB:H100":                                            `[{"class":"gpu","way":"mig","count":1,"model":"H100","memory":"10GiB"}]`,
		"gpu: 1:mig:H100":                                                  `[{"class":"gpu","way":"mig","count":1,"model":"H100"}]`,
		"gpu: 1:mig:4090":                                                  `[{"class":"gpu","way":"mig","count":1,"model":"4090"}]`,
		"groups: [{devices: [{class: gpu, way: mig, profile: 3G.40GB, memory: 9GiB}]}]": `[{"class":"gpu","way":"mig","count":1,"memory":"9GiB","profile":"3g.40gb"}]`,
		"gpu: 1:80GiB":                    `[{"class":"gpu","way":"whole","count":1,"memory":"80GiB"}]`,
		"groups: [{gpu: 1}]":              one,
		"devices: [{class: gpu}]":         "",
		"groups: [{gpu: 1, devices: []}]": one,
		"groups: [{devices: [{class: gpu, way: whole, device: 'example.com/gpu=gpu0', numa_node: 1}]}]": `[{"class":"gpu","way":"whole","count":1,"device":"example.com/gpu=gpu0","numa_node":1}]`,
	} {
		got, err := gpus(t, file)
		if want == "" && err != nil {
			continue // the short form has no devices
		}
		if err != nil || got != want {
			t.Errorf("%s\ngot %s, %v; want %s", file, got, err, want)
		}
	}
}

func TestGPUsThatCanNotBeHadAreRefusedWithWhatIsPossible(t *testing.T) {
	for file, want := range map[string]string{
		"gpu: 0":             "line 2: gpu: 0 GPUs are not possible; give 1 to 64 for each member",
		"gpu: 65":            "65 GPUs are not possible",
		"gpu: -1":            `gpu: "-1" is no request for GPUs; write their number, as in "2"`,
		"gpu: ''":            `gpu: "" is no request for GPUs`,
		"gpu: H200":          `gpu: "H200" is no request for GPUs; write their number`,
		"gpu: '1:'":          `gpu: "1:" is no request for GPUs`,
		"gpu: '1:a;b'":       `is no request for GPUs`,
		"gpu: 1:remote":      `gpu: "1:remote" does not say how much memory of a GPU each member gets, at least 16MiB; write "1:remote:8GiB"`,
		"gpu: 1:remote:H200": `"1:remote:H200" does not say how much memory`,
		"gpu: 1:remote:1MiB": `"1:remote:1MiB" does not say how much memory`,
		"gpu: 1:any:H200":    `gpu: "1:any:H200" does not say which GPU would do`,
		"gpu: 1:any:1MiB":    `1MiB of memory is not between 16MiB and`,
		"gpu: 1:H200:8GiB":   `gpu: "1:H200:8GiB" is no request for GPUs`,
		"gpu: 0:remote:8GiB": "0 GPUs are not possible",
		"groups: [{devices: [{class: gpu, way: whole, remote: true}]}]":                                          "groups[0].devices[0].remote: GPUs of other nodes are handed out by servers only, way remote or any with memory",
		"groups: [{devices: [{class: gpu, way: remote, memory: 8GiB}]}]":                                         "groups[0].devices[0].remote: must be true for way remote",
		"groups: [{devices: [{class: gpu, way: any, memory: 8GiB}]}]":                                            "groups[0].devices[0].remote: must be true for way any",
		"groups: [{devices: [{class: gpu, way: remote, remote: true}]}]":                                         "groups[0].devices[0].memory: is how much memory of the GPU each member gets",
		"groups: [{devices: [{class: gpu, way: remote, remote: true, memory: 1GiB}, {class: gpu, way: whole}]}]": "groups[0].devices[0].way: conflicts with the group's other GPUs",
		"gpu: 1:MIG-1g.18gb":      `gpu: "1:MIG-1g.18gb" is no request for GPUs; slices are requested by "1:mig", "1:mig:1g.10gb" for one of that profile`,
		"gpu: 2:1g.18gb":          `gpu: "2:1g.18gb" is no request for GPUs; slices are requested by`,
		"gpu: 1:mig:1g":           `gpu: "1:mig:1g" does not say which slices would do: "1g" is no profile; write "1:mig"`,
		"gpu: 1:mig:H100:1g.10gb": `"H100" is neither a profile nor a size of memory`,
		"gpu: 0:mig":              "0 GPUs are not possible",
		"gpu: 1:mig\nspares: 1":   "gpu: a spare can't hold a GPU for its member",
		"gpu: 1:mig\nstack: vm":   `gpu: members on the stack "vm" get no slices of GPUs (a slice is no PCI device of its own); write the number of whole ones, or use the stack "container"`,
		"groups: [{stack: vm, devices: [{class: gpu, way: mig}]}]":                  `members on the stack "vm" get no slices of GPUs (a slice is no PCI device of its own)`,
		"gpu: 1:mig\nstack: metal":                                                  `gpu: members on the stack "metal" get no slices of GPUs (nobody divides the GPUs of a machine that one member has); use the stack "container"`,
		"groups: [{devices: [{class: gpu, way: mig, remote: true}]}]":               "groups[0].devices[0].remote: GPUs of other nodes are handed out by servers only",
		"groups: [{devices: [{class: gpu, way: mig, profile: big}]}]":               `groups[0].devices[0].profile: "big" is no profile of a slice; write it as nvidia-smi does, such as 1g.10gb`,
		"groups: [{devices: [{class: gpu, way: whole, profile: 1g.10gb}]}]":         "groups[0].devices[0].profile: is for slices of GPUs, way mig, only; omit it",
		"gpu: 1\nstack: metal":                                                      `gpu: members on the stack "metal" get no GPUs yet; use the stack "container" or "vm"`,
		"gpu: 1\nstack: vm\nspares: 1":                                              "gpu: a spare can't hold a GPU for its member; omit the spares",
		"groups: [{devices: [{class: gpu, way: passthrough}]}]":                     `groups[0].devices[0].way: "passthrough" is not possible`,
		"gpu: 1\nspares: 1":                                                         "gpu: a spare can't hold a GPU for its member; omit the spares",
		"gpu: 1\ngroups: [{}]":                                                      "gpu: conflicts with groups; move it into a group",
		"groups: [{gpu: 1, devices: [{class: gpu, way: whole}]}]":                   "groups[0].gpu: conflicts with the group's devices of class gpu",
		"groups: [{devices: [{class: gpu, way: 1g-18gb}]}]":                         `groups[0].devices[0].way: "1g-18gb" is not possible: members get whole GPUs of their own nodes, way whole, slices of those, way mig, or parts of the memory of any, way remote`,
		"groups: [{devices: [{class: fpga, way: whole}]}]":                          "groups[0].devices[0].remote: must be true: of their own nodes, members get devices of class gpu only",
		"groups: [{stack: metal, devices: [{class: gpu, way: whole}]}]":             `members on the stack "metal" get no GPUs yet`,
		"groups: [{devices: [{class: gpu, way: whole, model: ' '}]}]":               `groups[0].devices[0].model: " " is no name of a model`,
		"groups: [{devices: [{class: gpu, way: whole, remote: true, memory: -1}]}]": "groups[0].devices[0].memory",
	} {
		if got, err := gpus(t, file); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s\ngot %s, %v; want %q", file, got, err, want)
		}
	}
}
