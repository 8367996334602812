package lazyroot

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"testing"
)

// device is a read-only device; reading at bad fails.
type device struct {
	data []byte
	bad  int64
}

func (d device) ReadAt(p []byte, off int64) (int, error) {
	if off == d.bad {
		return 0, errors.New("bad")
	}
	return bytes.NewReader(d.data).ReadAt(p, off)
}

// client speaks what the kernel speaks.
type client struct {
	t    *testing.T
	conn net.Conn
}

func (c client) send(command uint16, handle uint64, offset uint64, length uint32) {
	c.t.Helper()
	b := make([]byte, nbdRequestBytes)
	binary.BigEndian.PutUint32(b, nbdRequestMagic)
	binary.BigEndian.PutUint16(b[6:], command)
	binary.BigEndian.PutUint64(b[8:], handle)
	binary.BigEndian.PutUint64(b[16:], offset)
	binary.BigEndian.PutUint32(b[24:], length)
	if _, err := c.conn.Write(b); err != nil {
		c.t.Fatal(err)
	}
}

func (c client) reply() (code uint32, handle uint64) {
	c.t.Helper()
	b := make([]byte, nbdReplyBytes)
	if _, err := io.ReadFull(c.conn, b); err != nil {
		c.t.Fatal(err)
	}
	if magic := binary.BigEndian.Uint32(b); magic != nbdReplyMagic {
		c.t.Fatalf("a reply begins with %#x", magic)
	}
	return binary.BigEndian.Uint32(b[4:]), binary.BigEndian.Uint64(b[8:])
}

func attach(t *testing.T, d device) (client, chan error) {
	here, there := net.Pipe()
	ended := make(chan error, 1)
	go func() { ended <- ServeNBD(there, d, int64(len(d.data))) }()
	t.Cleanup(func() { _ = here.Close() })
	return client{t, here}, ended
}

func TestNBDReadsGiveWhatIsThere(t *testing.T) {
	data := content(1)
	c, ended := attach(t, device{data, 4096})
	for _, r := range []struct {
		offset uint64
		length uint32
		code   uint32
	}{
		{0, 4096, 0},
		{1000, 70000, 0},
		{uint64(len(data)) - 10, 10, 0},
		{4096, 4096, nbdEIO},
		{uint64(len(data)) - 10, 11, nbdEINVAL},
		{1 << 63, 1, nbdEINVAL},
		{0, 1 << 31, nbdEINVAL},
	} {
		c.send(nbdRead, r.offset^77, r.offset, r.length)
		code, handle := c.reply()
		if code != r.code || handle != r.offset^77 {
			t.Fatalf("read %d at %d: code %d of handle %d, want %d of %d", r.length, r.offset, code, handle, r.code, r.offset^77)
		}
		if code == 0 {
			got := make([]byte, r.length)
			if _, err := io.ReadFull(c.conn, got); err != nil || !bytes.Equal(got, data[r.offset:r.offset+uint64(r.length)]) {
				t.Fatalf("read %d at %d gives other content (%v)", r.length, r.offset, err)
			}
		}
	}
	c.send(nbdFlush, 5, 0, 0)
	if code, _ := c.reply(); code != 0 {
		t.Errorf("flush: code %d", code)
	}
	c.send(4, 6, 0, 4096) // trim
	if code, handle := c.reply(); code != nbdEPERM || handle != 6 {
		t.Errorf("trim: code %d", code)
	}
	c.send(nbdDisconnect, 0, 0, 0)
	if err := <-ended; err != nil {
		t.Errorf("after a disconnect: %v", err)
	}
}

func TestNBDWithoutTheMagicIsNoNBD(t *testing.T) {
	c, ended := attach(t, device{content(1), -1})
	_, _ = c.conn.Write(make([]byte, nbdRequestBytes))
	if err := <-ended; err == nil {
		t.Error("28 zero bytes were taken for a request")
	}
}

func FuzzNBDRequests(f *testing.F) {
	seed := make([]byte, 2*nbdRequestBytes)
	binary.BigEndian.PutUint32(seed, nbdRequestMagic)
	binary.BigEndian.PutUint32(seed[nbdRequestBytes:], nbdRequestMagic)
	seed[nbdRequestBytes+7] = nbdDisconnect
	f.Add(seed)
	d := device{make([]byte, 8192), -1}
	f.Fuzz(func(_ *testing.T, b []byte) {
		_ = ServeNBD(struct {
			io.Reader
			io.Writer
		}{bytes.NewReader(b), io.Discard}, d, 8192)
	})
}
