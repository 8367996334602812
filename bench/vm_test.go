package main

import (
	"slices"
	"strings"
	"testing"
)

func TestAMachineByHandHasTheCommandLineOfTheSitesOwn(t *testing.T) {
	args := []string{
		"/usr/bin/qemu-system-x86_64", "-name", "guest=uid.c1-0.1,debug-threads=on", "-S",
		"-object", `{"qom-type":"secret","id":"masterKey0","format":"raw","file":"/var/lib/master-key.aes"}`, "-machine", "pc-q35-7.2", "-m", "384", "-no-user-config",
		"-chardev", "socket,id=charmonitor,fd=28,server=on,wait=off", "-mon", "chardev=charmonitor,id=monitor,mode=control", "-no-shutdown",
		"-kernel", "/k", "-append", "panic=-1", "-netdev", `{"type":"tap","fd":"31","id":"hostnet0"}`,
		"-device", `{"driver":"virtio-net-pci","netdev":"hostnet0","mac":"02:6e:00:01:00:02"}`,
		"-chardev", "socket,id=charserial0,fd=24,server=on,wait=off", "-chardev", "socket,id=charchannel1,path=/run/vm/uid/control/agent.sock,reconnect=1",
	}
	want := "-name by-hand -machine pc-q35-7.2 -m 384 -no-user-config -no-shutdown -kernel /k -append panic=-1 " +
		"-netdev tap,id=hostnet0,script=no,downscript=no,ifname=tap0 " +
		`-device {"driver":"virtio-net-pci","netdev":"hostnet0","mac":"02:6e:00:01:00:02"} ` +
		"-chardev socket,id=charserial0,path=/d/charserial0,server=on,wait=off -chardev socket,id=charchannel1,path=/d/charchannel1,reconnect=1"
	got, err := handArguments(args, "/d", "tap0", "by-hand", 0)
	if err != nil || strings.Join(got, " ") != want {
		t.Errorf("got %v\n%s\nwant\n%s", err, strings.Join(got, " "), want)
	}
	queues := slices.Clone(args)
	queues[slices.Index(queues, "-netdev")+1] = `tap,fds=31:32:33,id=hostnet0`
	if got, err := handArguments(queues, "/d", "tap0", "by-hand", 0); err != nil || !slices.Contains(got, "tap,id=hostnet0,script=no,downscript=no,ifname=tap0,queues=3") {
		t.Errorf("a NIC with three queues: got %v, %v", got, err)
	}
	if _, err := handArguments(append(args, "-device", "something,fd=7"), "/d", "tap0", "by-hand", 0); err == nil {
		t.Error("an open file that nobody knows how to open was passed over")
	}
}

func TestMachinesByHandRunOnTheCPUsOfTheSitesMachinesInTurn(t *testing.T) {
	for _, c := range []struct {
		name    string
		of, all []int
		want    string
	}{
		{"machines of one CPU on two", []int{0}, []int{0, 1}, "0 1 0 1"},
		{"machines of one CPU, the first not on the first", []int{5}, []int{4, 5, 6}, "5 6 4 5"},
		{"machines of two CPUs on four", []int{0, 1}, []int{0, 1, 2, 3}, "0,1 2,3 0,1 2,3"},
		{"machines of two CPUs that share one", []int{1, 1}, []int{1}, "1 1 1 1"},
	} {
		var got []string
		for n := range 4 {
			got = append(got, places{of: c.of, all: c.all}.cpus(n))
		}
		if strings.Join(got, " ") != c.want {
			t.Errorf("%s: got %v, want %s", c.name, got, c.want)
		}
	}
}

func TestAGuestsMemoryIsToldFromItsQEMUs(t *testing.T) {
	const smaps = `7f00-7f10 rw-p 00000000 00:00 0
Size:             393216 kB
Rss:              200000 kB
Pss:              200000 kB
Pss_Dirty:             0 kB
5600-5610 r-xp 00000000 08:01 7 /usr/bin/qemu-system-x86_64
Size:               4096 kB
Pss:                1500 kB
`
	for _, c := range []struct {
		name  string
		guest int64
		want  memoryUse
	}{
		{"a machine", 384 << 20, memoryUse{proportional: 1500 << 10, guest: 200000 << 10}},
		{"another process", 0, memoryUse{proportional: 201500 << 10}},
	} {
		if got, err := readMemory([]byte(smaps), c.guest); err != nil || got != c.want {
			t.Errorf("%s: got %+v, %v, want %+v", c.name, got, err, c.want)
		}
	}
}

func TestRatesAreReadFromWhatDDSays(t *testing.T) {
	const said = "32+0 records in\n32+0 records out\n33554432 bytes (34 MB, 32 MiB) copied, 0.5 s, 67.1 MB/s\n33554432 bytes (34 MB, 32 MiB) copied, 2 s, 16.8 MB/s\n"
	got, err := ddRates(said)
	if want := []float64{67.108864, 16.777216}; err != nil || !slices.Equal(got, want) {
		t.Errorf("got %v, %v, want %v", got, err, want)
	}
}

func TestFairnessIsOneForEqualSharesAndFallsWithTheNumberThatGetNothing(t *testing.T) {
	for _, c := range []struct {
		name   string
		shares []float64
		want   float64
	}{
		{"equal shares", []float64{5, 5, 5, 5}, 1},
		{"one of four gets everything", []float64{0, 8, 0, 0}, 0.25},
		{"two get twice as much as two", []float64{1, 1, 2, 2}, 0.9},
		{"nobody gets anything", []float64{0, 0}, 0},
	} {
		if got := jain(c.shares); got != c.want {
			t.Errorf("%s: got %v, want %v", c.name, got, c.want)
		}
	}
}

func TestAMigrationsDowntimeIsReadFromWhatVirshPrints(t *testing.T) {
	const said = "Job type:         Completed   \nTime elapsed:     1204         ms\nTotal downtime:   67           ms\n"
	for _, c := range []struct {
		name, text string
		want       float64
		fails      bool
	}{
		{"a completed migration", strings.ReplaceAll(said, "           ms", " ms"), 67, false},
		{"columns", said, 67, false},
		{"no migration", "Job type: None\n", 0, true},
	} {
		if got, err := jobFigure(c.text, "Total downtime", "ms"); got != c.want || (err != nil) != c.fails {
			t.Errorf("%s: got %v, %v, want %v", c.name, got, err, c.want)
		}
	}
}
