package lvmthin_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/volume"
	"github.com/nearmetal/nearmetal/internal/volume/imagepool"
)

// onDisk reads a block of the disk that cluster 1 has, or writes one and flushes it, by NBD.
func onDisk(t *testing.T, p *imagepool.Pool, uid string, at int64, block []byte, write bool) error {
	t.Helper()
	conn, err := net.Dial("unix", p.Socket(uid, "cluster-1"))
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(time.Minute)); err != nil {
		return err
	}
	exchange := func(send, answer []byte) error {
		if _, err := conn.Write(send); err != nil {
			return err
		}
		_, err := io.ReadFull(conn, answer)
		return err
	}
	if err := errors.Join(exchange(nil, make([]byte, 18)), exchange([]byte("\x00\x00\x00\x03IHAVEOPT\x00\x00\x00\x01\x00\x00\x00\x00"), make([]byte, 10))); err != nil {
		return err
	}
	const fua = 1
	request := []byte{0x25, 0x60, 0x95, 0x13, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1}
	if write {
		request[5], request[7] = fua, 1
	}
	request = binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint64(request, uint64(at)), uint32(len(block)))
	answer := make([]byte, 16)
	if write {
		request = append(request, block...)
	} else {
		answer = append(answer, block...)
	}
	if err := exchange(request, answer); err != nil {
		return err
	}
	if number := binary.BigEndian.Uint32(answer[4:]); number != 0 {
		return errors.New("the answer is an error")
	}
	if !write {
		copy(block, answer[16:])
	}
	return nil
}

// TestABlockVolumeIsALogicalVolumeThatIsServed has a disk in a thin pool written to, detached, cloned, restored and purged.
func TestABlockVolumeIsALogicalVolumeThatIsServed(t *testing.T) {
	newGroup(t)
	dir := filepath.Join(inMemory(t), "pool")
	p := newPool(t, dir)
	apply := func(v volume.Volume) {
		t.Helper()
		if err := p.Apply(t.Context(), v); err != nil {
			t.Fatal(err)
		}
	}
	first, second := bytes.Repeat([]byte{1}, 4096), bytes.Repeat([]byte{2}, 4096)
	holds := func(uid string, want []byte) {
		t.Helper()
		got := make([]byte, len(want))
		if err := onDisk(t, p, uid, 1<<20, got, false); err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s holds %d, %v; want %d", uid, got[0], err, want[0])
		}
	}
	v := made()
	v.Block, v.MaxFiles = true, 0
	apply(v)
	if err := onDisk(t, p, v.UID, 1<<20, first, true); err != nil {
		t.Fatal(err)
	}
	v.Snapshots = []string{"snap-a"}
	apply(v)
	if err := onDisk(t, p, v.UID, 1<<20, second, true); err != nil {
		t.Fatal(err)
	}
	holds(v.UID, second)
	clone := cloned()
	clone.Block, clone.MaxFiles, clone.Attachments = true, 0, v.Attachments
	apply(clone)
	holds(clone.UID, first)
	back := v
	back.Attachments, back.Restore = nil, &api.VolumeRestoreIntent{SnapshotUID: "snap-a", Number: 1}
	apply(back)
	back.Attachments = v.Attachments
	apply(back)
	holds(v.UID, first)
	if err := p.Purge(t.Context(), v.UID, v.Generation); !errors.Is(err, volume.ErrInUse) {
		t.Errorf("it is purged while it is attached: %v", err)
	}
	for _, uid := range []string{v.UID, clone.UID} {
		apply(volume.Volume{UID: uid, Generation: 9, Purge: true})
		if err := p.Purge(t.Context(), uid, 9); err != nil {
			t.Error(err)
		}
	}
	if all := strings.TrimSpace(lvm(t, "lvs", "--noheadings", "-o", "lv_name", group)); all != pool {
		t.Errorf("logical volumes that are left: %q", all)
	}
}
