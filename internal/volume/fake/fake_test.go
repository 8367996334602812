package fake_test

import (
	"errors"
	"testing"

	"github.com/nearmetal/nearmetal/internal/volume"
	"github.com/nearmetal/nearmetal/internal/volume/fake"
	"github.com/nearmetal/nearmetal/internal/volume/volumetest"
)

func TestPoolContract(t *testing.T) {
	disks := map[int]*fake.Disk{}
	volumetest.Run(t, volumetest.Harness{
		New: func(_ *testing.T, node int) volume.Pool {
			if disks[node] == nil {
				disks[node] = fake.NewDisk(volumetest.CapacityBytes)
			}
			return disks[node].Pool()
		},
		Hold: func(t *testing.T, node int, _ volume.Pool, uid, _ string, bytes int64) {
			t.Helper()
			if err := disks[node].Use(uid, bytes, 1); err != nil {
				t.Fatal(err)
			}
		},
	})
}

func TestAPoolDoesWhatItsTestScripts(t *testing.T) {
	disk := fake.NewDisk(volumetest.CapacityBytes)
	p := disk.Pool()
	v := volumetest.Volume(1)
	want := errors.New("the disk is broken")
	disk.Fail(v.UID, want)
	if err := p.Apply(t.Context(), v); !errors.Is(err, want) {
		t.Errorf("got %v, want %v", err, want)
	}
	if err := p.Apply(t.Context(), v); err != nil {
		t.Fatal(err)
	}
	disk.Spoil(v.UID)
	if all, err := p.Observe(t.Context()); err != nil || len(all) != 1 || all[0].Ready {
		t.Errorf("spoiled: %+v, %v", all, err)
	}
	disk.SetProblems("mkfs.ext4 is not installed")
	if d := p.Describe(t.Context()); d.Kind != "" || len(d.Problems) != 1 {
		t.Errorf("with a problem: %+v", d)
	}
}
