package api

// NetworkRecord is a name of a project's own on one of its networks: members of clusters on the network find the addresses by it.
type NetworkRecord struct {
	// Name is a DNS name, such as licence or licence.lab, in lower case and without a dot at its end.
	Name string `json:"name"`
	// Addresses are the IPv4 and IPv6 addresses that the name leads to.
	Addresses []string `json:"addresses"`
}

// RecordMark ends the lines of a hosts file that are records, which tells them from names of members.
const RecordMark = "# record"

// NetworkRecords is the body of a change of records.
type NetworkRecords struct {
	// Set are records to add, and to replace where there is one of the name.
	Set []NetworkRecord `json:"set,omitempty"`
	// Remove are the names of records to remove.
	Remove []string `json:"remove,omitempty"`
}
