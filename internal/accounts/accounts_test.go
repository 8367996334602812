package accounts

import "testing"

func TestServicesOfAnImageKeepTheirNumbers(t *testing.T) {
	const generated = "root:*:0:0::/root:/bin/bash\nsshd:*:101:65534::/run/sshd:/bin/false\nhpc:*:1000:1000::/home/hpc:/bin/bash\n"
	for name, tc := range map[string]struct{ image, want string }{
		"another service has what is sshd's elsewhere": {
			"sshd:x:100:65534::/run/sshd:/sbin/nologin\nmunge:x:101:104::/nonexistent:/bin/false\n",
			"root:*:0:0::/root:/bin/bash\nsshd:x:100:65534::/run/sshd:/sbin/nologin\nhpc:*:1000:1000::/home/hpc:/bin/bash\nmunge:x:101:104::/nonexistent:/bin/false\n",
		},
		"nobody becomes root or a person": {"sshd:x:0:0::/:/bin/sh\nhpc:x:7:7::/:/bin/sh\n", generated},
		"what is no account":              {"# a comment\n:x:5:5::/:/bin/sh\nsshd\nlast:x:7:7::/:/bin/false", generated + "last:x:7:7::/:/bin/false\n"},
	} {
		if got := Merge(generated, tc.image); got != tc.want {
			t.Errorf("%s: got\n%swant\n%s", name, got, tc.want)
		}
	}
}
