package vm

// fileHanded is there once a member was handed over to another host, until that is undone.
const fileHanded = "handed.json"
