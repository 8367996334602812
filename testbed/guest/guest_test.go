package guest

import (
	"strings"
	"testing"
)

func TestTheGuestsScriptQuotesWhatTheShellWouldRead(t *testing.T) {
	t.Parallel()
	got := script(Config{
		Shares: []string{"/srv/a b"}, Modules: []string{"tun"}, Dir: "/srv/a b/it's", Env: []string{"NEARMETAL_X=$HOME;y"}, Command: []string{"echo", "*", "it's"},
	})
	want := `set -e
mkdir -p '/srv/a b'
mount -t 9p -o trans=virtio,version=9p2000.L,msize=512000,cache=loose,ro share0 '/srv/a b'
modprobe 'tun'
export NEARMETAL_X='$HOME;y'
cd '/srv/a b/it'\''s'
exec 'echo' '*' 'it'\''s'
`
	if got != want {
		t.Errorf("got:\n%s\nwant:\n%s", got, want)
	}
}

func TestAGuestKeepsItsDisksAndForgetsItsRoot(t *testing.T) {
	t.Parallel()
	args := strings.Join(arguments(Config{Image: Image{Root: "/i/root.img"}, CPUs: 2, MemoryMiB: 512, Disks: []string{"/d/data.img"}}, "/s"), " ")
	for _, want := range []string{"file=/i/root.img,format=raw,if=virtio,snapshot=on", "file=/d/data.img,format=raw,if=virtio,cache=writeback", "-nic none"} {
		if !strings.Contains(args, want) {
			t.Errorf("QEMU's arguments lack %q:\n%s", want, args)
		}
	}
}

func TestAGuestsLinksAreItsCardsInOrder(t *testing.T) {
	t.Parallel()
	var links []Link
	for _, mac := range []string{"52:54:00:00:00:01", "52:54:00:00:00:02"} {
		ends, err := NewLink(mac, "52:54:00:00:00:09")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { ends[0].end.Close(); ends[1].end.Close() })
		links = append(links, ends[0])
	}
	args := strings.Join(arguments(Config{Links: links}, "/s"), " ")
	const want = "-netdev socket,id=link0,fd=3 -device virtio-net-pci,netdev=link0,mac=52:54:00:00:00:01,romfile= " +
		"-netdev socket,id=link1,fd=4 -device virtio-net-pci,netdev=link1,mac=52:54:00:00:00:02,romfile="
	if !strings.Contains(args, want) {
		t.Errorf("QEMU's arguments lack %q:\n%s", want, args)
	}
}
