package cgroup

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestControlGroupsAreFoundHoweverTheyAreMounted(t *testing.T) {
	const root = "21 1 254:0 / / rw - ext4 /dev/vda rw\n"
	cases := []struct {
		name, mountinfo string
		want            Groups
		wantErr         string
	}{
		{
			name:      "v2",
			mountinfo: root + "25 21 0:22 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n",
			want:      Groups{group: "n1", trees: []hierarchy{{mountPoint: "/sys/fs/cgroup", v2: true}}},
		},
		{
			name: "v1 with two controllers in one tree, mounted twice",
			mountinfo: "30 25 0:26 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n" +
				"31 25 0:27 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n31 25 0:27 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n",
			want: Groups{group: "n1", trees: []hierarchy{
				{mountPoint: "/sys/fs/cgroup/cpu,cpuacct", controllers: []string{"cpu", "cpuacct"}},
				{mountPoint: "/sys/fs/cgroup/memory", controllers: []string{"memory"}},
			}},
		},
		{
			name: "v1 beside an empty v2",
			mountinfo: "31 25 0:27 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n" +
				"32 25 0:28 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n",
			want: Groups{
				group: "n1", hybrid: "/sys/fs/cgroup/unified",
				trees: []hierarchy{{mountPoint: "/sys/fs/cgroup/memory", controllers: []string{"memory"}}},
			},
		},
		{name: "none", mountinfo: root, wantErr: "no control groups are mounted at /sys/fs/cgroup; run: mount -t cgroup2 none /sys/fs/cgroup"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			got, err := parse(strings.NewReader(c.mountinfo), "n1")
			if c.wantErr != "" {
				if err == nil || err.Error() != c.wantErr {
					t.Errorf("error %v, want %q", err, c.wantErr)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(&c.want, got, cmp.AllowUnexported(Groups{}, hierarchy{})); diff != "" {
				t.Errorf("want (-), got (+):\n%s", diff)
			}
		})
	}
}
