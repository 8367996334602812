package controller

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/image"
	"github.com/nearmetal/nearmetal/internal/machine/netboot"
	"github.com/nearmetal/nearmetal/internal/state"
	"github.com/nearmetal/nearmetal/internal/store/memory"
	"github.com/nearmetal/nearmetal/internal/trust"
)

// BenchmarkTellMachines is what the leader tells network boot and the provisioner of 1,000 machines in each pass. All boot one image, and all
// have a BMC with a password.
func BenchmarkTellMachines(b *testing.B) {
	const n = 1000
	for _, changes := range []int{0, 1, n} {
		b.Run(fmt.Sprintf("changed=%d", changes), func(b *testing.B) {
			l := newLed(b, memory.New())
			l.provisions()
			sealer, err := trust.NewSealer(trust.Secrets{{Key: make([]byte, trust.SecretBytes)}})
			if err != nil {
				b.Fatal(err)
			}
			images := encodedImage(b)
			l.lead.cfg.Images, l.lead.cfg.Provisioning.Unseal = images, sealer.Open
			var told netboot.Table
			l.lead.cfg.Provisioning.SetTable = func(t netboot.Table) { told = t }
			view := &state.View{}
			for i := range n {
				m := bootingMachine(i, images.digest)
				m.Intent.Sealed = sealer.Seal(m.UID(), []byte("the password of a BMC"))
				view.Nodes = append(view.Nodes, &state.Node{Name: m.Name(), Machine: m})
			}
			b.ReportAllocs()
			for b.Loop() {
				view.Nodes = slices.Clone(view.Nodes)
				for i := range changes {
					changed := *view.Nodes[i].Machine
					view.Nodes[i] = &state.Node{Name: changed.Name(), Machine: &changed}
				}
				if errs := l.lead.tellMachines(view); slices.ContainsFunc(errs, func(err error) bool { return err != nil }) || len(told.Machines) != n {
					b.Fatal(errs, len(told.Machines))
				}
			}
		})
	}
}

// bootingMachine is the i-th machine, and boots an image.
func bootingMachine(i int, digest image.Digest) *state.Machine {
	name, uid := fmt.Sprintf("n%03d", i), fmt.Sprintf("u%d", i)
	return &state.Machine{
		Intent: api.MachineIntent{
			Name: name, UID: uid, Spec: api.MachineSpec{MACs: []string{fmt.Sprintf("52:54:00:00:%02x:%02x", i>>8, i&0xff)}, Power: api.PowerControl{Kind: api.PowerIPMI, User: "u"}},
		},
		Record: &api.MachineRecord{
			Name: name, UID: uid, Phase: api.MachineBooting, Index: i, Generation: 2, Boot: &api.Boot{Generation: 2, Digest: string(digest), Deadline: time.Unix(0, 0)},
		},
	}
}

// encoded is an image store with one image. Like that of the server it decodes and verifies the image once.
type encoded struct {
	Images
	digest   image.Digest
	mu       sync.Mutex
	manifest *image.Manifest
}

func encodedImage(tb testing.TB) *encoded {
	tb.Helper()
	blob := image.Blob{Digest: image.DigestOf([]byte("a part")), SizeBytes: 1 << 20}
	root := image.Root{Blob: blob, Chunks: blob}
	m := image.Manifest{
		Environment: "debian-mpi", Architecture: archX64, Root: root, Layers: []image.Root{root, root}, Stacks: []api.Stack{api.StackMetal},
		Metal: &image.Metal{Kernel: blob, Initrd: blob, KernelVersion: "6.1", Arguments: "quiet"},
	}
	data, digest, err := m.Encode()
	if err != nil {
		tb.Fatal(err)
	}
	manifest, err := image.Decode(data, digest)
	if err != nil {
		tb.Fatal(err)
	}
	return &encoded{digest: digest, manifest: manifest}
}

func (e *encoded) Load(image.Digest) (*image.Manifest, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.manifest, nil
}
