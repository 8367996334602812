package imagepool_test

import (
	"fmt"
	"os"
	"testing"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/volume"
	"github.com/nearmetal/nearmetal/internal/volume/imagepool"
	"github.com/nearmetal/nearmetal/internal/volume/reflink"
	"github.com/nearmetal/nearmetal/internal/volume/volumetest"
)

// BenchmarkVolumes shows that snapshot, clone and purge of 10 GiB take as long with many files as with few. The pool is a sparse file.
func BenchmarkVolumes(b *testing.B) {
	needPrograms(b)
	for _, files := range []int{100, 100_000} {
		b.Run(fmt.Sprintf("files=%d", files), func(b *testing.B) { benchmarkVolumes(b, files) })
	}
}

func benchmarkVolumes(b *testing.B, files int) {
	dir := b.TempDir()
	p, err := imagepool.New(imagepool.Config{Dir: dir, Images: reflink.New(reflink.Config{Dir: dir, LoopBytes: 100 << 30, Sparse: true})})
	if err != nil {
		b.Fatal(err)
	}
	defer func() {
		if err := p.Close(b.Context()); err != nil {
			b.Error(err)
		}
	}()
	apply := func(v volume.Volume) {
		if err := p.Apply(b.Context(), v); err != nil {
			b.Fatal(err)
		}
	}
	v := sized(made(), 10<<30)
	v.MaxFiles = v.SizeBytes / api.VolumeBytesPerFile
	apply(v)
	fillWithFiles(b, p, files)
	v = withSnapshot(v)
	apply(v)

	b.Run("create", func(b *testing.B) {
		for b.Loop() {
			other := sized(volumetest.Volume(3), v.SizeBytes)
			other.MaxFiles = v.MaxFiles
			apply(other)
			b.StopTimer()
			apply(purged(other))
			b.StartTimer()
		}
	})
	b.Run("snapshot", func(b *testing.B) {
		for b.Loop() {
			more := v
			more.Snapshots = []string{"snap-a", "snap-b"}
			apply(more)
			b.StopTimer()
			apply(v)
			b.StartTimer()
		}
	})
	clone := sized(cloned(), v.SizeBytes)
	clone.MaxFiles = v.MaxFiles
	b.Run("clone", func(b *testing.B) {
		for b.Loop() {
			apply(clone)
			b.StopTimer()
			apply(purged(clone))
			b.StartTimer()
		}
	})
	b.Run("purge", func(b *testing.B) {
		for b.Loop() {
			b.StopTimer()
			apply(clone)
			b.StartTimer()
			apply(purged(clone))
		}
	})
}

// fillWithFiles makes files of 4 KiB in volume 1, a thousand in a directory.
func fillWithFiles(b *testing.B, p *imagepool.Pool, files int) {
	err := volumetest.As(b, p, "vol-1", volumetest.Attachment(1), 1000, func(root *os.Root) error {
		content := make([]byte, 4096)
		for i := range files {
			if i%1000 == 0 {
				if err := root.Mkdir(fmt.Sprint(i/1000), 0o755); err != nil {
					return err
				}
			}
			if err := root.WriteFile(fmt.Sprintf("%d/%d", i/1000, i), content, 0o644); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		b.Fatal(err)
	}
}
