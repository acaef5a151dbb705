// Bus errors of mapped files, said before the process ends by them.
#pragma once

namespace gb {

// From now on a read past the end of a mapped file prints the file's name to stderr, and then ends the
// process by SIGBUS as before. Another handler that is there already stays.
void explain_bus_errors();

}  // namespace gb
